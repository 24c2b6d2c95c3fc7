"""Tasks that act once per step stand before or after all passes of their stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from planner.ir.plan import Plan, RegstKind, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Instance
from planner.lower.names import compute_stream
from planner.lower.orders.pass_order import _weight_share, pass_order
from planner.schedule import Schedule
from planner.schedule.actions import Pass

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


def test_the_share_of_the_weight_part_is_the_largest_of_a_stage_and_counts_what_passes_of_a_micro_batch_keep() -> None:
    kinds = {"state": RegstKind.STATE, "once": RegstKind.DATA} | dict.fromkeys("abcde", RegstKind.DATA)
    made_by = {"once": "cast", "a": "F0", "b": "F0", "c": "F1", "d": "F1", "e": "B1"}
    read_by = {"state": ("F0",), "a": ("W0",), "once": ("F0", "W0"), "b": ("B0",), "c": ("W1", "F1"), "d": ("B1",), "e": ("W1",)}
    size_bytes = {"state": 1000, "a": 30, "once": 1000, "b": 70, "c": 40, "d": 60, "e": 10}
    passes = {"F": Pass.FORWARD, "B": Pass.BACKWARD_INPUT, "W": Pass.BACKWARD_WEIGHT}
    acts = {task: 1 if task == "cast" else 4 for task in {*made_by.values(), *(task for tasks in read_by.values() for task in tasks)}}
    plan = SimpleNamespace(
        regsts=[SimpleNamespace(id=name, kind=kinds[name], producer=made_by.get(name)) for name in size_bytes],
        consumers={name: [(SimpleNamespace(id=task), None) for task in tasks] for name, tasks in read_by.items()},
        block_bytes=lambda regst: size_bytes[regst.id],
        task={
            task: SimpleNamespace(
                acts=count, produces=[SimpleNamespace(regst=name, acts_per_block=1) for name, maker in made_by.items() if maker == task]
            )
            for task, count in acts.items()
        },
    )
    pass_of = {task: (passes[task[0]], int(task[1])) for task in acts if task != "cast"}
    # stage 0: 30 of 30 + 70; stage 1: 40 kept by the forward pass and 10 by the backward one, of 40 + 60
    assert _weight_share(cast(Plan, plan), pass_of) == 0.5
