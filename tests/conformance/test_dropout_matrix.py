"""The conformance matrix with dropout: 6.1 with one device's draws, and one device's masks bit for bit, in every cell (SEMANTICS 7)."""

from __future__ import annotations

from functools import cache

import pytest
from drawn_masks import assert_masks_are_those_of_one_device, expected, noted, program
from matrix import CELLS, COVERING, WAYS, assert_transparent, options_for, roomy_cluster

from backend import perform
from planner.ir.plan import Plan
from planner.parallelism.make import make_plan

STEPS = 2


@cache
def planned(model: str, way: str) -> Plan:
    made, asked = program(model), WAYS[way]
    return make_plan(
        made.graph(asked.micro_batches),
        model=model,
        batch_size=made.batch_size,
        cluster=roomy_cluster(asked.devices),
        options=options_for(model, way),
    )


@pytest.mark.representatives(*COVERING[::2])
@pytest.mark.parametrize(("model", "way"), CELLS)
def test_a_cell_with_dropout_equals_one_device_and_drops_the_same_elements(model: str, way: str) -> None:
    plan, made = planned(model, way), program(model)
    with noted() as masks:
        outcome = perform(plan, made.initial_state(plan.micro_batches), made.batch, STEPS, gradients=True)
    eager, alone = expected(model, plan.micro_batches, STEPS)
    assert_masks_are_those_of_one_device(masks, alone)
    assert_transparent(outcome, eager)


def test_a_mask_that_is_another_ones_is_caught() -> None:
    _, alone = expected("mlp", 1, STEPS)
    (first, second, *_) = alone.pieces
    with pytest.raises(AssertionError):
        assert_masks_are_those_of_one_device(type(alone)({**alone.pieces, second: alone.pieces[first]}), alone)
