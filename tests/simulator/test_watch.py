"""Interruption leaves whole steps or nothing, progress counts acts, the watchdog refuses an act that the Plan does not say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, check_trace
from simulator import simulate
from simulator.watch import Watchdog, simulate_watched


def interrupted_after(plan: Plan, acts: int, steps: int = 4):
    def stop(done: int, total: int) -> None:
        if done == acts:
            raise KeyboardInterrupt

    return simulate_watched(plan, TableCost(), steps=steps, on_progress=stop, every_acts=1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_interrupted_simulation_leaves_the_whole_steps_that_were_done_and_they_keep_the_laws(data: st.DataObject):
    plan = data.draw(st.one_of(live_dags(), st.sampled_from([pipeline(2, 3), data_parallel(2)])))
    per_step = sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    acts = data.draw(st.integers(1, 4 * per_step - 1))
    whole = simulate(plan, TableCost(), steps=4)
    try:
        partial = interrupted_after(plan, acts)
    except KeyboardInterrupt:
        return
    check_trace(plan, partial)
    # SimPy hands the interruption on when the instant is over, so acts that end in it may still be told.
    told = int(partial.about["interrupted"].split()[1])
    assert acts <= told <= 4 * per_step
    assert partial.about["interrupted"] == f"after {told} of {4 * per_step} acts; asked for 4 steps"
    assert len(partial.acts) == partial.steps * per_step <= told
    assert set(partial.acts) <= set(whole.acts)


def test_an_interruption_in_the_first_step_goes_on_as_an_interruption():
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(chain("ab", 1, acts=3), 5)
    assert interrupted_after(chain("ab", 1, acts=3), 6).steps == 1


def test_a_simulation_that_is_not_interrupted_is_the_plain_one():
    plan = pipeline(2, 4)
    assert simulate_watched(plan, TableCost(), steps=3) == simulate(plan, TableCost(), steps=3)


def test_progress_tells_the_acts_done_and_in_all_and_ends_at_all():
    told: list[tuple[int, int]] = []
    simulate_watched(chain("ab", 1, acts=5), TableCost(), steps=2, on_progress=lambda *n: told.append(n), every_acts=8)
    assert told == [(8, 20), (16, 20), (20, 20)]


def test_the_watchdog_refuses_an_act_that_the_plan_does_not_say():
    plan = chain("ab", 1, acts=1)
    dog = Watchdog(plan, 1)
    dog(Act("a", 0, 0, 0.0, 0.0, 1.0))
    for act in (Act("a", 0, 1, 1.0, 1.0, 2.0), Act("a", 0, 0, 0.0, 0.0, 1.0), Act("b", 0, 3, 0.0, 0.0, 1.0), Act("b", 1, 0, 0.0, 0.0, 1.0)):
        with pytest.raises(InvalidPlan, match=rf"act {act.number} of {act.task} on rank {act.rank}, where the plan says"):
            dog(act)
