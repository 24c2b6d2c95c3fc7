"""explain shows what each stage computes, and what a large vocabulary does to stages of equal depth."""

from __future__ import annotations

import pytest

import regista
from planner.ir.plan import TaskKind
from regista.analysis.budget import spending, stage_work
from regista.views.tables.balance import balance_json, show_balance

MODEL = "zoo:gpt?layers=4&width=512&heads=4&vocab=65536&batch=2&seq=128"


@pytest.mark.thorough
def test_the_cut_weighs_the_head_so_its_fullest_stage_computes_less_than_that_of_equal_layers() -> None:
    session = regista.PlannerSession(MODEL)
    shape = {"stages": 2, "micro_batches": 2}
    even, weighed = (session.plan("p3.16xlarge:1", mesh=(4,), cuts=cuts, **shape) for cuts in (("h.2",), ()))
    works = {plan.plan_id: stage_work(spending(plan)) for plan in (even, weighed)}
    most = {plan_id: max(stage.passes_s for stage in stages) for plan_id, stages in works.items()}
    assert most[weighed.plan_id] < most[even.plan_id]


def test_the_rows_add_up_to_what_the_tasks_that_compute_take() -> None:
    plan = regista.plan("zoo:mlp?depth=2&width=8&hidden=8&batch=4", "local:2", stages=2, micro_batches=2)
    kinds = {kind.value for kind in TaskKind if kind.is_compute}
    spent = spending(plan)
    assert abs(sum(s.compute_s for s in stage_work(spent)) - sum(s.time_s for s in spent if s.what in kinds)) < 1e-12
    table = show_balance(spent)
    assert table is not None and table.row_count == 2 == len(balance_json(spent))


def test_one_stage_has_no_balance() -> None:
    plan = regista.plan("zoo:mlp?depth=2&width=8&hidden=8&batch=4", "local:2")
    assert show_balance(spending(plan)) is None
