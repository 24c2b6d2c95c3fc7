"""GELU's tanh form and its gradient are as close to the true values as torch's own, and torch's own where they do not suit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.ops.cpu.gelu import _PIECE, _SMALLEST, gelu, gelu_gradient

EXTREME = (0.0, -0.0, 1e-30, -1e-30, 30.0, -30.0, 1e4, -1e4, 1e13, -1e13, 1e18, -1e18)


def numbers(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """(x, gradients) of an uneven number of pieces."""
    count = 2 * _PIECE + 1000
    x = torch.linspace(-12, 12, count, dtype=torch.float64).to(dtype)
    return x, torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def errors(made: Tensor, torchs: Tensor, true: Tensor) -> tuple[float, float]:
    """The largest distance from the truth, ours and torch's."""
    return float((made.double() - true).abs().max()), float((torchs.double() - true).abs().max())


def true_values(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    x = x.double().clone().requires_grad_()
    y = torch.nn.functional.gelu(x, approximate="tanh")
    y.backward(g.double())
    assert x.grad is not None
    return y.detach(), x.grad


def test_values_and_gradients_are_as_close_to_the_truth_as_torchs() -> None:
    x, g = numbers()
    y, slope = true_values(x, g)
    ours, theirs = errors(gelu(x, approximate="tanh"), torch.nn.functional.gelu(x, approximate="tanh"), y)
    assert ours < 1.5 * theirs
    torchs = torch.ops.aten.gelu_backward.default(g, x, approximate="tanh")
    ours, theirs = errors(gelu_gradient(g, x, approximate="tanh"), torchs, slope)
    assert ours < 2 * theirs


def test_in_double_precision_they_are_the_true_values() -> None:
    x, g = numbers(torch.float64)
    y, slope = true_values(x, g)
    torch.testing.assert_close(gelu(x, approximate="tanh"), y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gelu_gradient(g, x, approximate="tanh"), slope, rtol=1e-12, atol=1e-13)


def test_where_the_logistic_function_is_0_or_1_values_and_gradients_are_torchs() -> None:
    x = torch.tensor(EXTREME).repeat(_SMALLEST)
    torch.testing.assert_close(gelu(x, approximate="tanh"), torch.nn.functional.gelu(x, approximate="tanh"))
    g = torch.full_like(x, 3.0)
    torch.testing.assert_close(gelu_gradient(g, x, approximate="tanh"), torch.ops.aten.gelu_backward.default(g, x, approximate="tanh"))


def test_results_are_left_in_the_memory_that_is_given() -> None:
    x, g = numbers()
    out = torch.empty_like(x)
    assert gelu(x, approximate="tanh", out=out) is out and torch.equal(out, gelu(x, approximate="tanh"))
    assert gelu_gradient(g, x, approximate="tanh", grad_input=out) is out
    assert torch.equal(out, gelu_gradient(g, x, approximate="tanh"))


@pytest.mark.parametrize(
    ("x", "form"),
    [
        (torch.randn(8, 8), "tanh"),
        (torch.randn(256, 256), "none"),
        (torch.randn(256, 256).to(torch.bfloat16), "tanh"),
        (torch.randn(256, 256).t(), "tanh"),
    ],
    ids=["small", "by the error function", "16 bits", "transposed"],
)
def test_elsewhere_the_kernels_are_torchs(x: Tensor, form: str) -> None:
    y = torch.nn.functional.gelu(x, approximate=form)
    assert torch.equal(gelu(x, approximate=form), y) and torch.equal(gelu(x, approximate=form, out=torch.empty_like(x)), y)
    slope = torch.ops.aten.gelu_backward.default(y, x, approximate=form)
    assert torch.equal(gelu_gradient(y, x, approximate=form), slope)
    assert torch.equal(gelu_gradient(y, x, approximate=form, grad_input=torch.empty_like(x)), slope)
