"""Traces and costs that do not belong to the plan, or break a law of traces, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Command

from planner.cost import MeasuredCost, save_cost
from tests.regista.refusals.refusal import assert_refused, edited


def test_traces_of_different_plans_or_in_the_wrong_order_are_refused(command: Command, made: dict[str, Path], tmp_path: Path):
    assert_refused(
        command, tmp_path, "compare", made["run"], made["sim"], says="wants a simulated and a measured trace, in this order; got 'run'"
    )
    assert_refused(command, tmp_path, "compare", made["sim"], made["sim"], says="got 'sim' and 'sim'")
    assert_refused(command, tmp_path, "compare", made["pipesim"], made["run"], says="is of plan .*; simulate and run the same plan file")
    assert_refused(command, tmp_path, "compare", made["sim"], made["run"], "--warmup", "3", says="leaves nothing of a trace of 3 steps")
    assert_refused(command, tmp_path, "gantt", made["sim"], made["pipesim"], "-o", tmp_path / "g.png", says="traces are of different plans")
    assert_refused(command, tmp_path, "gantt", made["sim"], made["sim"], "-o", tmp_path / "g.png", says="1 simulated and 1 measured")
    assert_refused(
        command, tmp_path, "export", made["sim"], made["pipesim"], "-o", tmp_path / "e.json", says="traces are of different plans"
    )


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t["acts"].pop(), "law 1: .* acted "),
        (lambda t: t["acts"][0].update(task="nope"), "law 6: act of nope"),
        (lambda t: t["acts"][0].update(number=-1), "law 1"),
        (lambda t: t["acts"][0].update(end_s={"float": "nan"}), "no finite times"),
        (lambda t: t.update(steps=2**62), "law 1"),
        (lambda t: t.update(steps=0), "has 0 steps"),
        (lambda t: t["peak_bytes"].update(x=1), r"peak bytes of ranks \['x'\]"),
        (lambda t: t.update(plan_id="0"), "holds a trace of plan 0 beside plan"),
    ],
)
def test_an_edited_trace_is_refused_by_the_law_it_breaks(command: Command, made: dict[str, Path], tmp_path: Path, edit: Any, says: str):
    bad = edited(made["sim"], tmp_path / "sim.json", lambda d: edit(d["trace"]))
    assert_refused(command, tmp_path, "compare", bad, made["run"], says=says)


def test_a_cost_table_of_another_plan_or_half_of_one_is_refused(command: Command, made: dict[str, Path], tmp_path: Path):
    cost = tmp_path / "cost.json"
    save_cost(MeasuredCost(plan_id="feedfeedfeedfeed", acts={}, message_latency_s=0.0, act_overhead_s=0.0), str(cost))
    goal = ("simulate", made["plan"], "--cost", cost)
    assert_refused(
        command,
        tmp_path,
        *goal,
        says=r"measured for plan feedfeedfeedfeed\) has no price for task .*; measure this plan with 'regista calib",
    )
    cost.write_bytes(cost.read_bytes()[:-20])
    assert_refused(command, tmp_path, *goal, says="truncated")
    assert_refused(
        command, tmp_path, "simulate", made["plan"], "--cost", tmp_path / "no", says="no such file; 'regista calibrate PLAN -o FILE' writes"
    )
