"""SEMANTICS 6.1 on real processes over gloo: each law of the matrix once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from matrix import (
    STEPS,
    assert_is_what_it_says,
    assert_transparent,
    assert_transparent_in_bf16,
    expected,
    plan_for,
    program,
    roomy_cluster,
)

from backend import run
from planner.frontend import SGD, Program
from planner.ir.traces.trace import check_trace
from planner.parallelism.make import PlanOptions, make_plan

pytestmark = pytest.mark.processes

SOME: Sequence[tuple[str, str, str]] = (
    ("gpt", "interleaved2", "fp32"),
    ("mlp", "zb_h1", "fp32"),
    ("gpt", "zero3", "fp32"),
    ("gpt", "sequence2", "bf16"),
    ("gpt", "zero1", "bf16-mixed"),
    ("bert", "data2_tensor2", "fp32"),
    ("bert", "recompute_pipeline2", "fp32"),
    ("unet", "pipeline2", "fp32"),  # skips across the border
    ("t5", "pipeline2", "fp32"),  # one embedding on both sides of it
    ("moe", "data2_experts2", "fp32"),
    ("convnet", "data2", "fp32"),  # batch norm
    ("llama3", "data2_tensor2", "fp32"),  # attention as one op
    ("llama3", "zero3", "bf16"),
)
"""Each law once; all cells: python -m experiments.transparency."""


@pytest.mark.representatives("mlp-zb_h1-fp32", "gpt-zero3-fp32")
@pytest.mark.parametrize(("model", "way", "dtype"), SOME)
def test_plan_on_processes_equals_training_on_one(model: str, way: str, dtype: str) -> None:
    plan = plan_for(model, way, dtype)
    assert_is_what_it_says(plan, way)
    source = program(model, dtype)
    outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True, timeout_s=120)
    if dtype.startswith("bf16"):
        assert_transparent_in_bf16(model, outcome, plan.micro_batches, dtype)
    else:
        assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)


@pytest.mark.thorough
def test_initial_values_are_bit_identical_to_the_unsharded_model() -> None:
    """With a learning rate of 0 the parameters that come back are those that went out."""
    source = program("gpt")
    frozen = Program(source.module, source.example_inputs, source.loss, SGD(lr=0.0), name="gpt", data=source.data)
    pins = ("h.*.mlp.c_fc.weight=S(0)", "h.*.mlp.c_proj.weight=S(1)", "wte.weight=S(0)")
    plan = make_plan(frozen.graph(1), model="gpt", batch_size=frozen.batch_size, cluster=roomy_cluster(2), options=PlanOptions(pins=pins))
    outcome = run(plan, frozen.initial_state(1), frozen.batch, 1)
    for name, parameter in source.module.named_parameters():
        assert torch.equal(outcome.states[name], parameter.detach()), name
