"""SEMANTICS 6.1 on the reference performer, for the whole matrix; and wrong performers that the same check must catch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from matrix import STEPS, WAYS, assert_is_what_it_says, assert_transparent, expected, plan_for, program
from torch import Tensor

from backend import perform
from backend.reference import ReferencePerformer
from planner.cost import AnalyticCost
from planner.ir.plan import Boxing, Task
from planner.ir.trace import check_trace
from simulator import simulate

MODELS = ("mlp", "gpt", "convnet")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_plan_on_virtual_devices_equals_training_on_one(model: str, way: str) -> None:
    plan = plan_for(model, way)
    assert_is_what_it_says(plan, way)
    source = program(model)
    outcome = perform(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_simulated_trace_obeys_the_laws(model: str, way: str) -> None:
    plan = plan_for(model, way)
    check_trace(plan, simulate(plan, AnalyticCost(plan.cluster), steps=STEPS))


class ForgetsToReduce(ReferencePerformer):
    """Its all-reduce hands every rank its own partial value."""

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return list(parts) if "all_reduce" in task.id else super().run_boxing(task, body, parts)


class LeavesOutAMicroBatch(ReferencePerformer):
    """The second micro-batch never reaches the sum."""

    def accumulate(self, held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
        self.seen = getattr(self, "seen", 0) + 1
        return super().accumulate(held, value * (0.0 if self.seen % 2 == 0 else 1.0), acts_per_block)


class ScalesTwice(ReferencePerformer):
    """Divides by the number of micro-batches once too often."""

    def accumulate(self, held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
        return super().accumulate(held, value / acts_per_block, acts_per_block)


@pytest.mark.parametrize(
    ("wrong", "way"),
    [(ForgetsToReduce, "data2"), (ForgetsToReduce, "tensor2"), (LeavesOutAMicroBatch, "pipeline2"), (ScalesTwice, "pipeline2")],
)
@pytest.mark.parametrize("model", MODELS)
def test_a_wrong_performer_is_caught(wrong: type[ReferencePerformer], way: str, model: str) -> None:
    plan = plan_for(model, way)
    if wrong is ForgetsToReduce and not any("all_reduce" in task.id for task in plan.tasks):
        pytest.skip("this plan needs no all-reduce")
    source = program(model)
    outcome = wrong(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True).run()
    with pytest.raises(AssertionError):
        assert_transparent(outcome, expected(model, plan.micro_batches))
