"""Tasks that act once per step stand before or after all passes of their stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from planner.ir.plan import Plan, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Instance
from planner.lower.names import compute_stream
from planner.lower.orders.pass_order import pass_order
from planner.schedule import Schedule

BOXING = TaskKind.BOXING


def test_what_needs_state_only_stands_before_all_passes_and_the_rest_of_the_step_after_them() -> None:
    tasks = {
        "cast": (BOXING, ("weight",)),
        "cut": (BOXING, ("cast",)),  # after another one that stands before
        "F": (TaskKind.FORWARD, ("cut",)),
        "B": (TaskKind.BACKWARD, ("F",)),
        "sum": (BOXING, ("B",)),
        "update": (TaskKind.UPDATE, ("sum",)),
        "decay": (TaskKind.UPDATE, ("weight",)),  # an update, so it changes what the passes read
    }
    value = {name: Instance(name, 0, NdSbp.broadcast(1)) for name in ("weight", *tasks)}
    drafts = SimpleNamespace(
        tasks={
            name: Draft(name, kind, 0, compute_stream(0), 1, {value[read]: read for read in reads}, {value[name]: name})
            for name, (kind, reads) in tasks.items()
        },
        owner={value[name]: name for name in tasks},
        stored={},
        per_step=lambda name: name in ("cast", "cut", "sum"),
        staged=SimpleNamespace(num_stages=1),
        micro_batches=2,
    )
    order = pass_order(
        Schedule.ZB_H1, cast(Drafts, drafts), interleave=1, hold=None, given=None, plan=cast(Plan, None), act_s=lambda task: 0.0
    )
    assert order is not None
    stream = compute_stream(0).id
    assert dict(order.before) == {stream: ("cast", "cut")}
    assert dict(order.after) == {stream: ("sum", "update", "decay")}
