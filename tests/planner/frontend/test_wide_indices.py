"""An index that is widened to look up whole tokens is read as it was, in the forward and the backward pass: same step, nothing widened is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from planner.frontend import Program
from planner.ir.graph import Op
from planner.ir.tensor import DType
from planner.parallelism.make import PlanOptions, make_plan

BATCH, TOKENS, PICKED, WIDTH = 4, 6, 8, 16


class Picking(nn.Module):
    """Tokens of each sample are picked, bent and added at their places."""

    def __init__(self, widen: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.widen = widen
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        x, index = self.first(x), self.widen(token.unsqueeze(-1))
        made: Tensor = self.last(torch.zeros_like(x).scatter_add(1, index, F.gelu(x.gather(1, index))))
        return made


def whole(token: Tensor) -> Tensor:
    return token.expand(-1, -1, WIDTH)


def first_half(token: Tensor) -> Tensor:
    return token.expand(-1, -1, WIDTH // 2)


def repeated(token: Tensor) -> Tensor:
    return token.repeat(1, 1, WIDTH)


def program(widen: Callable[[Tensor], Tensor]) -> Program:
    torch.manual_seed(0)
    token = torch.randint(TOKENS, (BATCH, PICKED))
    x = torch.randn(BATCH, TOKENS, WIDTH)
    return Program(Picking(widen), (x, token, x.flip(0)), F.mse_loss)


def lookups(widen: Callable[[Tensor], Tensor]) -> list[Op]:
    names = ("take_along", "add_along", "gather", "scatter_add")
    return [op for op in program(widen).graph().ops if any(f".{name}" in op.target for name in names)]


def test_tokens_are_picked_and_put_back_by_an_index_of_one_number_each() -> None:
    graph, found = program(whole).graph(), lookups(whole)
    assert sorted(op.target for op in found) == ["regista.add_along"] * 2 + ["regista.take_along"] * 2
    assert {graph.values[op.inputs[1]].shape for op in found} == {(BATCH, PICKED, 1)}
    assert not [value for value in graph.values.values() if value.dtype is DType.INT64 and value.numel > BATCH * PICKED]


@pytest.mark.parametrize("widen", [first_half, repeated])
def test_an_index_of_a_part_of_the_width_or_one_that_is_written_out_stays_as_it_is(widen: Callable[[Tensor], Tensor]) -> None:
    assert {op.target for op in lookups(widen)} == {"aten.gather.default", "aten.scatter_add.default"}


@pytest.mark.parametrize("widen", [whole, first_half, repeated])
@pytest.mark.parametrize("pins", [("input.*=S(0)",), ("first.weight=S(0)", "last.weight=S(1)"), ("input.1=S(1)",)])
def test_two_devices_pick_like_one(widen: Callable[[Tensor], Tensor], pins: tuple[str, ...]) -> None:
    source = program(widen)
    plan = make_plan(source.graph(), model="m", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(pins=pins))
    assert_transparent(perform(plan, source.initial_state(), source.batch, 2, gradients=True), train_eagerly(source, 1, 2))
