"""SEMANTICS 6.1 on the reference performer, for the whole matrix; and wrong performers that the same check must catch."""

from __future__ import annotations

import re

import pytest
from matrix import (
    CELLS,
    COVERING,
    MODELS,
    REFUSED,
    STEPS,
    WAYS,
    assert_is_what_it_says,
    assert_transparent,
    expected,
    plan_for,
    program,
)
from wrong_performers import (
    DropsABiasGradientAtTheBorder,
    ForgetsToReduce,
    GathersInTheWrongOrder,
    LeavesOutAMicroBatch,
    ReadsLastStepsWeights,
    ScalesTwice,
    Wrong,
)

from backend import perform
from planner.cost import AnalyticCost
from planner.ir.errors import Unsupported
from planner.ir.traces.trace import check_trace
from simulator import simulate


@pytest.mark.representatives(*COVERING)
@pytest.mark.parametrize(("model", "way"), CELLS)
def test_plan_on_virtual_devices_equals_training_on_one(model: str, way: str) -> None:
    plan = plan_for(model, way)
    assert_is_what_it_says(plan, way)
    source = program(model)
    outcome = perform(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)


@pytest.mark.representatives(*COVERING)
@pytest.mark.parametrize(("model", "way"), CELLS)
def test_simulated_trace_obeys_the_laws(model: str, way: str) -> None:
    plan = plan_for(model, way)
    check_trace(plan, simulate(plan, AnalyticCost(plan.cluster), steps=STEPS))


@pytest.mark.parametrize(("model", "way"), REFUSED)
def test_a_cell_that_cannot_be_is_refused_and_says_why(model: str, way: str) -> None:
    with pytest.raises(Unsupported, match=REFUSED[model, way]):
        plan_for(model, way)


def test_every_model_goes_every_common_way_or_is_refused() -> None:
    common = {way for way in WAYS if all((model, way) in REFUSED or (model, way) in CELLS for model in MODELS)}
    for requested in ("data2", "tensor2", "sequence2", "gpipe2", "pipeline2", "interleaved2", "zb_h1", "data2_tensor2"):
        assert requested in common
    for requested in ("pipeline2_data2_tensor2", "zero1", "zero2", "zero3", "recompute_data2", "recompute_pipeline2"):
        assert requested in common


WRONG: list[tuple[type[Wrong], str]] = [
    (ForgetsToReduce, "data2"),
    (GathersInTheWrongOrder, "zero1"),
    (GathersInTheWrongOrder, "zero3"),
    (LeavesOutAMicroBatch, "pipeline2"),
    (ScalesTwice, "pipeline2"),
    (ReadsLastStepsWeights, "pipeline2"),
    (DropsABiasGradientAtTheBorder, "pipeline2"),
]


@pytest.mark.representatives(
    "mlp-ForgetsToReduce-data2",
    "gpt-GathersInTheWrongOrder-zero1",
    "bert-GathersInTheWrongOrder-zero3",
    "mlp-LeavesOutAMicroBatch-pipeline2",
    "wide_deep-ScalesTwice-pipeline2",
    "mlp-ReadsLastStepsWeights-pipeline2",
    "gpt-DropsABiasGradientAtTheBorder-pipeline2",
)
@pytest.mark.parametrize(("wrong", "way"), WRONG)
@pytest.mark.parametrize("model", MODELS)
def test_a_wrong_performer_is_caught(wrong: type[Wrong], way: str, model: str) -> None:
    plan, source = plan_for(model, way), program(model)
    performer = wrong(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    outcome = performer.run()
    assert performer.slips > 0, "the plan gave no occasion for the mistake"
    with pytest.raises(AssertionError, match=re.compile("times what rounding allows")):
        assert_transparent(outcome, expected(model, plan.micro_batches))


def test_a_wrong_performer_without_its_mistake_is_not_caught() -> None:
    """What is caught is the mistake, not the way in which it is planted."""
    plan, source = plan_for("gpt", "pipeline2_data2"), program("gpt")
    outcome = Wrong(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True).run()
    assert_transparent(outcome, expected("gpt", plan.micro_batches))
