"""SEMANTICS 6.1 on real processes over gloo: every plan of two ranks, and one of four."""

from __future__ import annotations

import pytest
import torch
from matrix import STEPS, WAYS, assert_is_what_it_says, assert_transparent, expected, plan_for, program, roomy_cluster

from backend import run
from planner.frontend import SGD, Program
from planner.ir.trace import check_trace
from planner.make import PlanOptions, make_plan

pytestmark = pytest.mark.processes

TWO_RANKS = [(model, way) for model in ("mlp", "gpt", "convnet") for way, how in WAYS.items() if how.devices == 2]


@pytest.mark.parametrize(("model", "way"), [*TWO_RANKS, ("gpt", "data2_tensor2")])
def test_plan_on_processes_equals_training_on_one(model: str, way: str) -> None:
    plan = plan_for(model, way)
    assert_is_what_it_says(plan, way)
    source = program(model)
    outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)


def test_initial_values_are_bit_identical_to_the_unsharded_model() -> None:
    """With a learning rate of 0 the parameters that come back are those that went out."""
    source = program("gpt")
    frozen = Program(source.module, source.example_inputs, source.loss, SGD(lr=0.0), name="gpt", data=source.data)
    pins = ("h.*.mlp.c_fc.weight=S(0)", "h.*.mlp.c_proj.weight=S(1)", "wte.weight=S(0)")
    plan = make_plan(frozen.graph(1), model="gpt", batch_size=frozen.batch_size, cluster=roomy_cluster(2), options=PlanOptions(pins=pins))
    outcome = run(plan, frozen.initial_state(1), frozen.batch, 1)
    for name, parameter in source.module.named_parameters():
        assert torch.equal(outcome.states[name], parameter.detach()), name
