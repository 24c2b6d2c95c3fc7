"""Hooks that the user put on parameters, modules and tensors: performed as torch performs them, or refused by name; never dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from torch import Tensor, nn

from planner.frontend import SGD, Program
from planner.ir.errors import Unsupported

_RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 6, generator=_RNG), torch.randn(8, 4, generator=_RNG)


class Net(nn.Module):
    """Two layers; ``inner`` may hook what lies between them."""

    def __init__(self, inner: Callable[[Tensor], object] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.inner is not None:
            self.inner(hidden)
        out: Tensor = self.second(hidden.tanh())
        return out


def _torch_losses(module: nn.Module, micro_batches: int, steps: int = 3) -> list[float]:
    """What the ordinary loop prints."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, foreach=False)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(X.chunk(micro_batches), Y.chunk(micro_batches), strict=True):
            loss = F.mse_loss(module(x), y) / micro_batches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        losses.append(total)
        optimizer.step()
    return losses


def _program(module: nn.Module) -> Program:
    return Program(module, (X, Y), F.mse_loss, SGD(lr=0.5))


def _on_parameter(hook: Callable[[Tensor], Tensor | None]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = Net()
        module.first.weight.register_hook(hook)  # type: ignore[no-untyped-call]
        return module

    return make


def _clipped(grad: Tensor) -> Tensor:
    return grad.clamp(-0.01, 0.01)


def _of_module(pre: bool) -> nn.Module:
    module = Net()
    if pre:
        module.second.register_full_backward_pre_hook(lambda _module, grads: (grads[0] * 0.3,))
    else:
        module.second.register_full_backward_hook(lambda _module, inputs, _outputs: (inputs[0].clamp(-0.001, 0.001),))
    return module


PERFORMED: dict[str, Callable[[], nn.Module]] = {
    "a parameter's hook that halves": _on_parameter(lambda grad: grad * 0.5),
    "a parameter's hook that clips": _on_parameter(_clipped),
    "a parameter's hook that normalises": _on_parameter(lambda grad: grad / grad.norm()),
    "a module's backward hook": lambda: _of_module(pre=False),
    "a module's backward pre-hook": lambda: _of_module(pre=True),
    "a tensor's hook in forward": lambda: Net(lambda hidden: hidden.register_hook(_clipped)),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("make", PERFORMED.values(), ids=list(PERFORMED))
def test_a_hook_that_returns_a_gradient_is_performed_as_torch_performs_it(make: Callable[[], nn.Module], micro_batches: int) -> None:
    program = _program(make())
    outcome = interpret(program, program.graph(micro_batches), micro_batches, 3)
    assert outcome.losses == pytest.approx(_torch_losses(make(), micro_batches), rel=1e-5)


def test_the_law_above_is_not_empty() -> None:
    assert _torch_losses(_on_parameter(_clipped)(), 1) != pytest.approx(_torch_losses(Net(), 1), rel=1e-3)


SEEN: list[Tensor] = []


def _look(grad: Tensor) -> None:
    SEEN.append(grad)


def _after(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.01, 0.01)


def _with_post_accumulate() -> nn.Module:
    module = Net()
    module.first.weight.register_post_accumulate_grad_hook(_after)
    return module


def _with_onlooker() -> nn.Module:
    module = Net()
    module.second.register_full_backward_hook(lambda *_: None)
    return module


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "post-accumulate": (
        _with_post_accumulate,
        r"parameter first\.weight has the post-accumulate-grad hook _after \(.*test_hooks\.py:\d+\)",
    ),
    "a parameter's onlooker": (_on_parameter(_look), r"parameter first\.weight has the backward hook _look \(.*test_hooks\.py:\d+\)"),
    "a module's onlooker": (_with_onlooker, r"module 'second' has the backward hook .*<lambda> \(.*test_hooks\.py:\d+\)"),
    "a tensor's onlooker": (lambda: Net(lambda hidden: hidden.register_hook(_look)), "a tensor of forward has the backward hook _look"),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=list(REFUSED))
def test_a_hook_that_no_plan_carries_out_is_refused_by_name(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        _program(make()).graph()
    SEEN.clear()


def test_hooks_are_afterwards_the_same_functions_at_the_same_places() -> None:
    module = _of_module(pre=False)
    before = dict(module.second._backward_hooks)
    register = Tensor.register_hook
    _program(module).graph()
    assert dict(module.second._backward_hooks) == before and Tensor.register_hook is register


def test_an_optimizers_step_hook_is_refused_by_name() -> None:
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(Unsupported, match=r"step post-hook .*<lambda> \(.*test_hooks\.py:\d+\)"):
        Program(module, (X, Y), F.mse_loss, optimizer)
