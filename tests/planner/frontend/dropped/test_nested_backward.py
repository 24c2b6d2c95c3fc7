"""A backward pass within the backward pass adds to the gradients of the parameters that it reaches, as reversible blocks do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from matrix import assert_transparent
from oracle import train_eagerly
from torch import Tensor, nn

import regista
from backend.reference import perform
from planner.frontend import Program
from tests.planner.frontend.programs import mse


class Reversible(torch.autograd.Function):
    """y1 = a + f(b), y2 = b + g(y1); backward computes a and b again from y1 and y2 [Gomez et al. 2017]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module, g: nn.Module) -> Tensor:
        a, b = x.chunk(2, -1)
        with torch.no_grad():
            first = a + f(b)
            made = torch.cat([first, b + g(first)], -1)
        ctx.f, ctx.g, ctx.made = f, g, made.detach()
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (first, second), (of_first, of_second) = ctx.made.chunk(2, -1), grads[0].chunk(2, -1)
        with torch.enable_grad():
            first = first.detach().requires_grad_()
            again = ctx.g(first)
            torch.autograd.backward(again, of_second)
        with torch.no_grad():
            b, of_first = second - again, of_first + first.grad
        with torch.enable_grad():
            b = b.detach().requires_grad_()
            torch.autograd.backward(ctx.f(b), of_first)
        return torch.cat([of_first, of_second + b.grad], -1), None, None


class Blocks(nn.Module):
    """Two reversible blocks of one pair of functions; one of them is used outside, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.f, self.g = (nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        for _ in range(2):
            hidden = Reversible.apply(hidden, self.f, self.g)  # type: ignore[no-untyped-call]
        made: Tensor = self.last(hidden) * self.g(hidden[..., :4]).mean()
        return made


@pytest.mark.parametrize("options", [{"pins": ["input.*=S(0)"], "micro_batches": 1}, {"micro_batches": 2}])
def test_parameters_of_reversible_blocks_are_trained_as_in_torch(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    source = Program(Blocks(), (torch.randn(4, 8), torch.randn(4, 8)), mse)
    plan = regista.plan(source, "local:2", **options)
    outcome = perform(plan, source.initial_state(), source.batch, 2, gradients=True)
    assert set(outcome.gradients) == {name for name, _ in source.module.named_parameters()}
    assert_transparent(outcome, train_eagerly(source, options["micro_batches"], 2))
