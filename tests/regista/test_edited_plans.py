"""Edits of Plans by law: the generator, the oracle that performs each, and the bugs that are planted in the lowering.

``python -m experiments.plan_edits`` and ``python -m experiments.planted_lowering_bugs`` do the same at large.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.plan_edits import oracle as oracles
from experiments.plan_edits.__main__ import measure
from experiments.plan_edits.bases import BASES, base_plan
from experiments.plan_edits.generator import EDITORS, edits_of
from experiments.plan_edits.kinds import EditKind
from experiments.plan_edits.oracle import Oracle, Performed
from experiments.plan_edits.rows import Fate, Row, read_rows, table, write_rows
from experiments.planted_lowering_bugs.__main__ import outcome
from experiments.planted_lowering_bugs.bugs import BUGS, Bug
from experiments.planted_lowering_bugs.planting import lowered, tried
from planner.ir.plan import Plan
from tests.mutation.tree import copy_tree

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return base_plan("data")


@pytest.fixture(scope="module")
def oracle(plan: Plan) -> Oracle:
    return Oracle(plan)


def test_edits_are_named_by_their_number_and_no_plan_comes_twice(plan: Plan) -> None:
    some = list(edits_of("data", plan, 60))
    assert [(number, edit.plan.plan_id) for number, edit in edits_of("data", plan, 20)] == [(n, e.plan.plan_id) for n, e in some[:20]]
    assert len({plan.plan_id, *(edit.plan.plan_id for _, edit in some)}) == 61
    assert len({edit.kind for _, edit in some}) >= 35


def test_every_kind_of_edit_has_its_editor() -> None:
    assert EDITORS.keys() == set(EditKind)


def test_the_oracle_tells_a_plan_that_computes_something_else(plan: Plan, oracle: Oracle) -> None:
    assert oracle.verdict(plan) == oracles.Verdict(performed=Performed.EQUAL, error=0.0, what="loss")
    first = {edit.kind: edit for _, edit in reversed(list(edits_of("data", plan, 60)))}
    wrong = (
        EditKind.COMMUNICATION_REMOVED_RELABELLED,
        EditKind.BOXING_REDUCTION,
        EditKind.STATES_EXCHANGED,
        EditKind.UPDATE_WRITES_NOTHING_NEW,
        EditKind.GRADIENTS_EXCHANGED,
        EditKind.LITERAL,
    )
    assert {kind: oracle.verdict(first[kind].plan).performed for kind in wrong} == dict.fromkeys(wrong, Performed.DIFFERENT)
    harmless = (EditKind.STREAM_ORDER, EditKind.QUOTA, EditKind.RENAMED, EditKind.RANKS_PERMUTED)
    assert {kind: oracle.verdict(first[kind].plan).performed for kind in harmless} == dict.fromkeys(harmless, Performed.EQUAL)


def test_a_process_that_dies_of_a_plan_is_a_finding(plan: Plan, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "verdict_here", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert oracle.verdict(plan) == oracles.Verdict(performed=Performed.CRASHED, what="the process ended with code -9")


def test_rows_are_kept_and_a_measurement_goes_on_where_it_was(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.plan_edits.__main__.base_plan", lambda _: plan)
    rows = measure("data", 3, {})
    write_rows(tmp_path / "rows.csv", rows)
    known = read_rows(tmp_path / "rows.csv")
    assert list(known.values()) == rows
    monkeypatch.setattr("experiments.plan_edits.__main__.Oracle", None)  # nothing is performed again
    assert measure("data", 3, known) == rows
    assert "all of 3 edits of 1 Plans" in table(rows)


def test_an_edit_is_counted_by_what_became_of_it() -> None:
    row = Row(
        base="b", number=0, plan_id="", edited_id="", kind="", words="", verify="accepted", validate="", performed="different", error=1.0,
        what="", reason="",
    )  # fmt: skip
    assert row.fate is Fate.DIFFERENT
    assert replace(row, performed="equal").fate is Fate.EQUAL
    assert replace(row, validate="PlanDoesNotComputeProgram: ...").fate is Fate.VALIDATE
    assert replace(row, validate="crashed: KeyError").fate is Fate.CRASHED
    assert replace(row, verify="DeadLock: ...", performed="").fate is Fate.VERIFY


@pytest.mark.parametrize(
    ("name", "edits"),
    [("data", 16), *(pytest.param(name, 30, marks=pytest.mark.thorough) for name in ("pipeline", "ZeRO 1", "zero-bubble h1", "dropout"))],
)
def test_every_edit_is_refused_or_computes_the_same(name: str, edits: int) -> None:
    rows = measure(name, edits, {})
    assert len(rows) == edits
    assert not [row for row in rows if row.fate in (Fate.DIFFERENT, Fate.CRASHED)]
    assert {Fate.VALIDATE, Fate.EQUAL} <= {row.fate for row in rows}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BASES)
def test_every_base_plan_is_made_and_gives_edits_of_many_kinds(name: str) -> None:
    assert len({edit.kind for _, edit in edits_of(name, base_plan(name), 60)}) >= 25


@pytest.mark.thorough
def test_bugs_in_the_lowering_are_caught_by_the_validator_alone(tmp_path: Path) -> None:
    copy_tree(ROOT, tmp_path / "tree")
    bases = [lowered(name) for name in ("data, accumulated", "pipeline x data", "ZeRO 1")]
    chosen = [bug for bug in BUGS if bug.module == "planner/lower/build.py"]
    outcomes = {bug.breaks: outcome(tried(tmp_path / "tree", bug, bases)) for bug in chosen}
    assert list(outcomes.values()).count("caught") >= 8
    assert "MISSED" not in outcomes.values(), outcomes


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.breaks)
def test_a_bug_can_be_planted_in_the_lowering_as_it_is(bug: Bug) -> None:
    planted = bug.planted((ROOT / bug.module).read_text(encoding="utf-8"))
    compile(planted, bug.module, "exec")
