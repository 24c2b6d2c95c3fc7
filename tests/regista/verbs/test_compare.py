"""Predicted beside measured: which steps count, what an error means, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import Mismatch
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Source, Trace
from regista.analysis.comparison import compare, default_warmup, summarise
from regista.views.tables.show import show_comparison, show_plan, show_summary
from simulator import simulate


def performed(plan: Plan, cost: TableCost, steps: int) -> Trace:
    """A trace that says it was measured."""
    return replace(simulate(plan, cost, steps=steps), source=Source.RUN, performer="story")


def slowed(plan: Plan, trace: Trace, factors: dict[int, float]) -> Trace:
    """A serial one-task trace whose steps take ``factors[step]`` (default 1) times as long."""
    now, acts = 0.0, []
    for act in trace.acts:
        duration_s = act.duration_s * factors.get(act.number // plan.task[act.task].acts, 1.0)
        acts.append(Act(act.task, act.rank, act.number, now, now, now + duration_s))
        now += duration_s
    return replace(trace, acts=tuple(acts))


def text_of(renderable: RenderableType) -> str:
    console = Console(width=160, color_system=None, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_relative_error_is_predicted_over_measured_minus_one():
    plan = data_parallel(2)
    comparison = compare(plan, simulate(plan, TableCost()), performed(plan, TableCost(default_s=1.25), steps=6))
    assert (comparison.step_time_s.predicted, comparison.step_time_s.measured) == (4.0, 5.0)
    assert comparison.step_time_s.relative_error == pytest.approx(-0.2)
    assert comparison.throughput_per_s.predicted == plan.batch_size / 4.0
    assert comparison.throughput_per_s.relative_error == pytest.approx(0.25)
    assert comparison.kinds["forward"].relative_error == pytest.approx(-0.2)
    assert comparison.actors["all_reduce"].relative_error == pytest.approx(-0.2)


def test_the_fill_of_the_simulation_and_the_warm_up_of_the_run_do_not_count():
    plan = chain("a", 1, 2)
    run = slowed(plan, performed(plan, TableCost(), steps=12), {0: 50.0, 1: 20.0, 2: 10.0})
    assert compare(plan, simulate(plan, TableCost()), run).step_time_s.measured == 2.0
    assert compare(plan, simulate(plan, TableCost()), run).warmup_steps == 3
    assert compare(plan, simulate(plan, TableCost()), run, warmup=0).spread.p90 > 2.0
    deep = pipeline(3, 4)
    sim = simulate(deep, TableCost(), steps=3)
    fill_s, inner_s, _ = sim.step_times_s(deep)
    assert compare(deep, sim, performed(deep, TableCost(), steps=5)).step_time_s.predicted == inner_s < fill_s


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (3, 1), (4, 1), (8, 2), (11, 2), (12, 3), (100, 3)])
def test_the_warm_up_is_a_quarter_of_the_run_up_to_three_steps(steps: int, warmup: int):
    plan = chain("a", 1, 1)
    assert default_warmup(performed(plan, TableCost(), steps)) == warmup


def test_the_measured_step_is_the_median_with_its_spread():
    plan = chain("a", 1, 1)
    run = slowed(plan, performed(plan, TableCost(), steps=14), {4: 9.0, 13: 1.5})
    comparison = compare(plan, simulate(plan, TableCost()), run)
    # 11 steps: nine of 1 s, one of 1.5 s, one of 9 s
    assert comparison.step_time_s.measured == 1.0
    assert (comparison.spread.p10, comparison.spread.p90, comparison.spread.steps) == (1.0, 1.5, 11)


def test_a_kind_is_busy_on_its_busiest_rank():
    plan = data_parallel(2)
    cost = TableCost({("backward", 0): 2.0, ("backward", 1): 3.0})
    comparison = compare(plan, simulate(plan, cost), performed(plan, cost, steps=4))
    assert comparison.kinds["backward"].predicted == comparison.kinds["backward"].measured == 3.0
    assert comparison.actors["backward"].predicted == 2.5  # the median over both ranks


def test_json_has_exactly_the_promised_keys():
    plan = pipeline(2, 2)
    data = compare(plan, simulate(plan, TableCost()), performed(plan, TableCost(), steps=4)).to_json()
    assert json.loads(json.dumps(data)) == data
    assert set(data) == {"plan_id", "model", "warmup_steps", "step_time_s", "throughput_per_s", "kinds", "actors", "register_bytes"}
    pair = {"predicted", "measured", "relative_error"}
    assert set(data["step_time_s"]) == pair | {"p10", "p90", "measured_steps"}
    assert set(data["throughput_per_s"]) == pair
    assert set(data["kinds"]) == {"source", "forward", "backward", "update", "transfer"}
    assert set(data["actors"]) == {task.id for task in plan.tasks}
    assert set(data["register_bytes"]) == {"0", "1"}
    assert all(set(entry) == pair for table in ("kinds", "actors", "register_bytes") for entry in data[table].values())


def test_an_error_over_nothing_measured_is_none_and_not_infinite():
    plan = data_parallel(1)
    data = compare(plan, simulate(plan, TableCost()), performed(plan, TableCost({"update": 0.0}), steps=4)).to_json()
    assert data["kinds"]["update"] == {"predicted": 1.0, "measured": 0.0, "relative_error": None}


def test_traces_in_the_wrong_order_or_of_another_plan_are_refused():
    plan, other = chain("ab", 2, 2), chain("ab", 1, 2)
    sim, run = simulate(plan, TableCost()), performed(plan, TableCost(), steps=4)
    for wrong in ((run, sim), (sim, sim), (run, run)):
        with pytest.raises(Mismatch, match="a simulated and a measured trace, in this order"):
            compare(plan, *wrong)
    with pytest.raises(Mismatch, match=rf"the sim trace is of plan {other.plan_id}, not of {plan.plan_id}"):
        compare(plan, simulate(other, TableCost()), run)
    with pytest.raises(Mismatch, match=rf"the run trace is of plan {other.plan_id}"):
        compare(plan, sim, performed(other, TableCost(), steps=4))
    with pytest.raises(Mismatch, match="a warm-up of 4 steps leaves nothing of a trace of 4 steps"):
        compare(plan, sim, run, warmup=4)


def test_a_summary_says_how_busy_each_stream_is():
    plan = data_parallel(2)
    summary = summarise(plan, simulate(plan, TableCost()))
    assert (summary.step_time_s, summary.throughput_per_s) == (4.0, 2.0)
    # load runs ahead of its step, in the step before; it is busy 1 s of every 4 all the same.
    assert {stream: ranks[0] for stream, ranks in summary.busy.items()} == {"load": 0.25, "compute": 0.75, "collective": 0.25}
    with pytest.raises(Mismatch):
        summarise(chain("a", 1, 1), simulate(plan, TableCost()))


def test_tables_never_mix_simulated_and_measured_numbers_in_one_column():
    plan = pipeline(2, 2)
    sim, run = simulate(plan, TableCost()), performed(plan, TableCost(default_s=2.0), steps=4)
    shown = text_of(show_comparison(compare(plan, sim, run)))
    assert shown.count("predicted (sim)") == shown.count("measured (run)") == 3
    assert "-50.0%" in shown
    assert "measured (run)" not in text_of(show_summary(plan, summarise(plan, sim)))
    assert "predicted (sim)" not in text_of(show_summary(plan, summarise(plan, run)))


def test_the_text_of_a_plan_names_all_placements_streams_tasks_and_quotas():
    plan = pipeline(2, 4)
    shown = text_of(show_plan(plan))
    for name in (*plan.placement, *plan.stream, *plan.task, *plan.regst, plan.plan_id, "micro-batches"):
        assert name in shown
    (keep0,) = [line for line in shown.splitlines() if "keep0" in line and "data" in line]
    assert keep0.split("│")[4].strip() == "2"


def test_markup_in_names_is_shown_literally():
    plan = replace(data_parallel(1), model="[red]x[/red]", options={"pins": "w=[S(0)]"})
    assert "[red]x[/red]" in text_of(show_plan(plan))
    assert "w=[S(0)]" in text_of(show_plan(plan))
