"""SEMANTICS 6.1 in bfloat16 on the reference performer: a plan is as far from float32 training as plain bfloat16 training is.

Convolution nets with batch norm amplify bfloat16's rounding: plain training itself is 40 to 80 % off in the gradients of the third step
(language models: 0.5 to 3 %).  So a small mistake is caught in the others; that a plan's structure is right, float32 shows for all.
"""

from __future__ import annotations

from statistics import median

import pytest
from matrix import (
    BF16_FACTOR,
    MODELS,
    REFUSED,
    STEPS,
    assert_transparent_in_bf16,
    bf16_errors,
    drawn_anew,
    gradient_error_over_plain,
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
from backend.layout.sharding import torch_dtype
from planner.ir.tensor import DType

WAYS = ("data2", "sequence2", "zb_h1", "pipeline2_data2_tensor2", "zero3")
CALM = ("mlp", "gpt", "bert", "t5", "moe", "wide_deep")


@pytest.mark.representatives("mlp-data2", "bert-sequence2", "gpt-zb_h1", "wide_deep-pipeline2_data2_tensor2", "mlp-zero3")
@pytest.mark.parametrize(("model", "way"), [(m, w) for m in MODELS for w in WAYS if (m, w) not in REFUSED])
def test_plan_in_bf16_is_as_near_to_float32_as_one_device_in_bf16(model: str, way: str) -> None:
    plan, source = plan_for(model, way, "bf16"), program(model, "bf16")
    outcome = perform(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent_in_bf16(model, outcome, plan.micro_batches)


MIXED_WAYS = ("data2", "tensor2", "pipeline2", "zero1", "zero2", "zero3", "recompute_data2", "pipeline2_data2_tensor2")
REROUTED = {("moe", "zero3"), ("moe", "pipeline2_data2_tensor2")}
"""A token whose two best experts are a rounding apart goes to the other one: with these weights gradients are 2.04 times as far off as in plain
training, 2 allowed; with other weights 0.6 to 2.0 times, which the test below compares."""


@pytest.mark.representatives("mlp-zero1")
@pytest.mark.parametrize(("model", "way"), [(m, w) for m in MODELS for w in MIXED_WAYS if (m, w) not in REFUSED and (m, w) not in REROUTED])
def test_plan_in_mixed_precision_is_as_near_to_float32_as_one_device_under_autocast(model: str, way: str) -> None:
    plan, source = plan_for(model, way, "bf16-mixed"), program(model, "bf16-mixed")
    outcome = perform(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent_in_bf16(model, outcome, plan.micro_batches, "bf16-mixed")


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "way"), sorted(REROUTED))
def test_plan_whose_tokens_change_experts_is_as_near_as_one_device_over_several_first_weights(model: str, way: str) -> None:
    plan, ratios = plan_for(model, way, "bf16-mixed"), []
    for seed in range(5):
        source = drawn_anew(model, seed)
        mixed = source.in_formats("bf16-mixed", None)
        outcome = perform(plan, mixed.initial_state(plan.micro_batches), mixed.batch, STEPS, gradients=True)
        ratios.append(gradient_error_over_plain(outcome, model, source, plan.micro_batches, "bf16-mixed"))
    assert median(ratios) <= 1.25, ratios
    assert max(ratios) <= 1.25 * BF16_FACTOR, ratios


@pytest.mark.representatives("mlp", "gpt")
@pytest.mark.parametrize("model", MODELS)
def test_everything_that_trains_is_bf16(model: str) -> None:
    plan, source = plan_for(model, "data2", "bf16"), program(model, "bf16")
    kept = {state.name: plan.regst[state.regst].tensors[state.index].dtype for state in plan.states if ":step" not in state.name}
    assert {kept[name] for name, _ in source.module.named_parameters()} == {DType.BFLOAT16}
    assert {dtype for name, dtype in kept.items() if ":exp_avg" in name} == {DType.BFLOAT16}
    assert all(torch_dtype(kept[name]) == p.dtype for name, p in source.module.named_parameters())


@pytest.mark.parametrize("model", ["gpt", "moe"])
def test_plain_bf16_training_differs_from_float32(model: str) -> None:
    """Else the comparison would allow nothing, or everything."""
    plan, source = plan_for(model, "data2", "bf16"), program(model, "bf16")
    outcome = perform(plan, source.initial_state(1), source.batch, STEPS, gradients=True)
    for errors in bf16_errors(model, outcome, plan.micro_batches):
        assert 2**-12 < errors.gradient < 2**-4
        assert 2**-12 < errors.parameter < 2**-4


WRONG: list[tuple[type[Wrong], str]] = [
    (ForgetsToReduce, "data2"),
    (GathersInTheWrongOrder, "zero3"),
    (LeavesOutAMicroBatch, "pipeline2"),
    (ScalesTwice, "pipeline2"),
    (ReadsLastStepsWeights, "pipeline2"),
    (DropsABiasGradientAtTheBorder, "pipeline2"),
]


@pytest.mark.representatives("mlp-ForgetsToReduce-data2", "wide_deep-ScalesTwice-pipeline2")
@pytest.mark.parametrize(("wrong", "way"), WRONG)
@pytest.mark.parametrize("model", CALM)
def test_a_wrong_performer_is_caught_in_bf16(wrong: type[Wrong], way: str, model: str) -> None:
    plan, source = plan_for(model, way, "bf16"), program(model, "bf16")
    performer = wrong(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    outcome = performer.run()
    assert performer.slips > 0, "the plan gave no occasion for the mistake"
    with pytest.raises(AssertionError):
        assert_transparent_in_bf16(model, outcome, plan.micro_batches)
