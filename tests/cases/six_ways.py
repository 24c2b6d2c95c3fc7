"""Six ways to distribute a small program, and how each is compared with a training of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from matrix import assert_transparent, roomy_cluster
from oracle import Outcome

from backend import perform
from planner.frontend import Program
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from planner.search import Method

__all__ = ["SIX_WAYS", "assert_trains_alike", "planned", "quick_ways"]

SIX_WAYS: Mapping[str, tuple[int, PlanOptions]] = {
    "accumulated": (1, PlanOptions(micro_batches=4)),
    "data": (2, PlanOptions(pins=("input.0=S(0)",), micro_batches=2)),
    "searched": (2, PlanOptions(micro_batches=2)),
    "greedy": (2, PlanOptions(micro_batches=2, method=Method.GREEDY)),
    "stages": (2, PlanOptions(stages=2, micro_batches=4)),
    "stages of data": (4, PlanOptions(stages=2, micro_batches=2, pins=("input.0=S(0)",))),
}
"""Name -> devices and options."""

quick_ways = pytest.mark.parametrize("way", [way if way == "stages" else pytest.param(way, marks=pytest.mark.thorough) for way in SIX_WAYS])


def planned(program: Program, way: str) -> Plan:
    """The program's plan in one of the six ways."""
    devices, options = SIX_WAYS[way]
    graph = program.graph(options.micro_batches or 1)
    return make_plan(graph, model=program.name, batch_size=program.batch_size, cluster=roomy_cluster(devices), options=options)


def assert_trains_alike(program: Program, way: str, expected: Callable[[int], Outcome], steps: int, *, factor: float = 1.0) -> Plan:
    """Perform the plan and compare it.

    Args:
        expected: micro-batches -> what plain PyTorch trains in so many steps.
    """
    plan = planned(program, way)
    outcome = perform(plan, program.initial_state(plan.micro_batches), program.batch, steps, gradients=True, numbers=program.step_numbers)
    assert_transparent(outcome, expected(plan.micro_batches), factor=factor)
    return plan
