"""Which pass of the pipeline a communication belongs to: on the stage that reads it that of its reader, before a transfer that of its maker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from planner.ir.plan import TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Instance
from planner.lower.names import compute_stream
from planner.lower.orders.passes import acts_per_step, passes_of
from planner.schedule.actions import Pass


def drafts_of(*chain: tuple[str, TaskKind, int], per_step: bool = False) -> Drafts:
    """Tasks of which each reads what the one before it makes."""
    tasks: dict[str, Draft] = {}
    owner: dict[Instance, str] = {}
    before: dict[Instance, str] = {}
    for name, kind, stage in chain:
        made = Instance(f"value of {name}", stage, NdSbp.broadcast(1))
        tasks[name] = Draft(name, kind, stage, compute_stream(stage), 1, before, {made: "made"}, fragment_stage=stage)
        owner[made] = name
        before = {made: "read"}
    return cast(Drafts, SimpleNamespace(tasks=tasks, owner=owner, per_step=lambda value: per_step))


FORWARD, BACKWARD, BOXING, TRANSFER = TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BOXING, TaskKind.TRANSFER


def test_boxing_belongs_to_the_pass_that_reads_it_through_other_boxing_too() -> None:
    drafts = drafts_of(("f", FORWARD, 0), ("first", BOXING, 0), ("second", BOXING, 0), ("b", BACKWARD, 0))
    assert passes_of(drafts, split=False) == {
        "f": (Pass.FORWARD, 0),
        "first": (Pass.BACKWARD, 0),
        "second": (Pass.BACKWARD, 0),
        "b": (Pass.BACKWARD, 0),
    }


def test_boxing_before_a_transfer_belongs_to_the_pass_that_made_what_it_moves() -> None:
    drafts = drafts_of(("f", FORWARD, 0), ("first", BOXING, 0), ("second", BOXING, 0), ("send", TRANSFER, 0), ("g", FORWARD, 1))
    assert passes_of(drafts, split=False) == {
        "f": (Pass.FORWARD, 0),
        "first": (Pass.FORWARD, 0),
        "second": (Pass.FORWARD, 0),
        "g": (Pass.FORWARD, 1),
    }


def test_boxing_after_a_transfer_belongs_to_its_reader() -> None:
    drafts = drafts_of(("f", FORWARD, 0), ("send", TRANSFER, 0), ("receive", BOXING, 1), ("g", FORWARD, 1))
    assert passes_of(drafts, split=False)["receive"] == (Pass.FORWARD, 1)


def test_a_split_backward_pass_has_an_input_and_a_weight_part() -> None:
    drafts = drafts_of(("b", BACKWARD, 1), ("w", TaskKind.WEIGHT, 1))
    assert passes_of(drafts, split=True) == {"b": (Pass.BACKWARD_INPUT, 1), "w": (Pass.BACKWARD_WEIGHT, 1)}


def test_what_acts_once_per_step_belongs_to_no_pass() -> None:
    drafts = drafts_of(("b", BACKWARD, 0), ("reduce", BOXING, 0), ("u", TaskKind.UPDATE, 0), per_step=True)
    assert passes_of(drafts, split=False) == {"b": (Pass.BACKWARD, 0)}
    assert [acts_per_step(drafts, task) for task in drafts.tasks.values()] == [False, True, True]


@pytest.mark.parametrize(("kind", "once"), [(FORWARD, False), (TaskKind.UPDATE, True), (TaskKind.FETCH, True), (BOXING, False)])
def test_updates_and_fetches_act_once_per_step(kind: TaskKind, once: bool) -> None:
    drafts = drafts_of(("task", kind, 0))
    assert acts_per_step(drafts, drafts.tasks["task"]) is once
