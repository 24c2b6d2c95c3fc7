"""The reference performer against plain torch, and wrong performers that must be caught (SEMANTICS 6)."""

from __future__ import annotations

from collections.abc import Sequence

import handmade
import pytest
import torch
from torch import Tensor

from backend.reference import ReferencePerformer, perform
from backend.run_folder.outcome import Outcome
from planner.ir.actors.routes import Piece
from planner.ir.errors import InvalidPlan, InvalidProgram
from planner.ir.plan import Boxing, Task
from planner.ir.traces.trace import Act, Source, check_trace

STEPS = 3
PLANS = {
    "data parallel 2": (handmade.data_parallel(2, 2), 2),
    "data parallel 4, uneven": (handmade.data_parallel(4, 3), 3),
    "one rank": (handmade.data_parallel(1, 1), 1),
    "pipeline": (handmade.pipeline(3), 3),
    "pipeline of pairs": (handmade.pipeline(3, width=2), 3),
}


def assert_transparent(outcome: Outcome, micro_batches: int, steps: int = STEPS) -> None:
    losses, weights, gradients = handmade.plain(handmade.start(), handmade.batches(micro_batches), micro_batches, steps)
    torch.testing.assert_close(torch.tensor(outcome.losses), torch.tensor(losses))
    for name in weights:
        torch.testing.assert_close(outcome.states[name], weights[name])
        torch.testing.assert_close(outcome.gradients[name], gradients[name])


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_on_many_ranks_equals_one_device(name: str) -> None:
    plan, micro_batches = PLANS[name]
    before = handmade.start()
    given = {key: value.clone() for key, value in before.items()}
    seen: list[Act] = []
    outcome = perform(plan, given, handmade.batches(micro_batches), STEPS, gradients=True, on_event=seen.append)
    assert_transparent(outcome, micro_batches)
    assert all(torch.equal(given[key], before[key]) for key in before)
    check_trace(plan, outcome.trace)
    assert outcome.trace.source is Source.RUN
    assert len(seen) == len(outcome.trace.acts)


def test_blocks_are_given_back_and_the_peak_stays_within_the_plan() -> None:
    from planner.ir.actors.verify import device_bytes

    plan, micro_batches = PLANS["pipeline"]
    few = perform(plan, handmade.start(), handmade.batches(micro_batches), 1).trace.peak_bytes
    many = perform(plan, handmade.start(), handmade.batches(micro_batches), 6).trace.peak_bytes
    assert few == many
    assert all(many[str(rank)] <= limit for rank, limit in device_bytes(plan).items())


class CopiesInsteadOfSums(ReferencePerformer):
    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [parts[0]] * len(parts)


class SumsInsteadOfMean(ReferencePerformer):
    def accumulate(self, held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
        return value.clone() if held is None else held + value


class ForgetsNegatives(ReferencePerformer):
    def run_fragment(self, task: Task, rank: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        results = super().run_fragment(task, rank, inputs)
        return [r.relu() for r in results] if task.id.startswith("backward") else results


class DeliversZeros(ReferencePerformer):
    def run_transfer(self, task: Task, piece: Piece, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (CopiesInsteadOfSums, "data parallel 2"),
        (SumsInsteadOfMean, "pipeline"),
        (ForgetsNegatives, "data parallel 2"),
        (DeliversZeros, "pipeline"),
    ],
)
def test_a_planted_wrong_performer_is_caught(wrong: type[ReferencePerformer], name: str) -> None:
    plan, micro_batches = PLANS[name]
    outcome = wrong(plan, handmade.start(), handmade.batches(micro_batches), STEPS, gradients=True).run()
    with pytest.raises(AssertionError):
        assert_transparent(outcome, micro_batches)


def test_a_state_or_batch_that_does_not_fit_is_refused_with_its_name() -> None:
    plan, micro_batches = PLANS["data parallel 2"]
    with pytest.raises(InvalidPlan, match="w2"):
        perform(plan, {"w1": handmade.start()["w1"]}, handmade.batches(micro_batches), 1)
    with pytest.raises(InvalidPlan, match="w1 has shape"):
        perform(plan, handmade.start() | {"w1": torch.zeros(1)}, handmade.batches(micro_batches), 1)
    with pytest.raises(InvalidProgram, match="samples"):
        perform(plan, handmade.start(), handmade.batches(micro_batches + 1), 1)
    with pytest.raises(InvalidProgram, match="2 tensors"):
        perform(plan, handmade.start(), lambda step: (torch.zeros(1), torch.zeros(1)), 1)
