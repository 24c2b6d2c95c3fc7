"""What the tests of one process and of devices share: hand-written plans, a broken one, and equality to the last bit."""

from __future__ import annotations

from dataclasses import replace

import handmade
import torch

from backend.run_folder.outcome import Outcome
from planner.ir.plan import Fragment, Plan

__all__ = ["HANDMADE", "assert_bit_equal", "broken"]

HANDMADE = {
    "data parallel": (handmade.data_parallel(2, 2), 2),
    "uneven": (handmade.data_parallel(4, 2), 2),
    "pipeline": (handmade.pipeline(3), 3),
    "pipeline of 2 x 2": (handmade.pipeline(3, width=2), 3),
    "one rank": (handmade.data_parallel(1, 2), 2),
}
"""Plan, its micro-batches."""


def assert_bit_equal(one: Outcome, other: Outcome) -> None:
    """Losses, states and gradients."""
    assert one.losses == other.losses
    for here, there in ((one.states, other.states), (one.gradients, other.gradients)):
        assert set(here) == set(there)
        assert [name for name, value in here.items() if not torch.equal(value, there[name])] == []


def broken(plan: Plan, task: str) -> Plan:
    """Its first op reads its operands in the wrong order, so that their shapes do not fit."""
    original = plan.task[task]
    assert isinstance(original.body, Fragment)
    first = original.body.ops[0]
    wrong = replace(original.body, ops=(replace(first, args=tuple(reversed(first.args))), *original.body.ops[1:]))
    return replace(plan, tasks=tuple(replace(t, body=wrong) if t.id == task else t for t in plan.tasks))
