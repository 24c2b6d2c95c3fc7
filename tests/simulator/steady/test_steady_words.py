"""The critical cycle in the user's words, and the numbers beside them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import Story, TableCost, chain, data_parallel, pipeline

from planner.ir.plan import TaskKind
from simulator.steady import steady_state
from simulator.steady.cycle_text import fold_repeats
from simulator.steady.graph import ArcKind


def test_the_bottleneck_of_a_chain_is_the_pair_that_shares_too_few_blocks():
    cost = TableCost({"a": 1.0, "b": 3.0, "c": 2.0})
    state = steady_state(chain("abc", [2, 1, 1], acts=4), cost)
    assert state.text == "(dev forward b -> dev forward c -> quota 1 of `Regst_b`) x 4"
    assert state.period_s == 4 * 5.0
    assert steady_state(chain("abc", 2, acts=4), cost).text == "dev forward b x 4"


def test_the_cycle_of_1f1b_with_slow_links_goes_there_and_back_and_ends_at_the_quota():
    plan = pipeline(2, 2, update=False)
    cost = TableCost({t.id: 4.0 for t in plan.tasks if t.kind is TaskKind.TRANSFER} | {t.id: 0.0 for t in plan.tasks if "upd" in t.id})
    assert steady_state(plan, cost).text == (
        "stage 0 forward -> link 0->1 -> stage 1 forward -> stage 1 backward -> link 1->0 -> stage 0 backward -> quota 2 of `keep0`"
    )


def test_the_update_in_place_closes_the_cycle_of_a_data_parallel_step():
    text = steady_state(data_parallel(2), TableCost({"load": 0.0})).text
    assert text == "dev forward -> dev backward -> dev all_reduce -> dev update -> new `w`"


def test_a_busy_stream_is_named():
    story = Story()
    for name in ("left", "right"):
        story.regst(f"{name}_out", name, 2)
        story.task(name, produces=[f"{name}_out"], stream="shared")
        story.task(f"read_{name}", [f"{name}_out"])
    story.order("shared", "left", "right")
    assert steady_state(story.freeze(), TableCost({"read_left": 0.0, "read_right": 0.0})).text == (
        "dev forward left -> next on stream shared -> dev forward right -> next on stream shared"
    )


def test_a_period_that_rests_on_a_simulated_order_says_so():
    state = steady_state(pipeline(2, 4), TableCost())
    assert "streams compute0, compute1 in the order of the simulated steady step" in state.about
    assert "simulated" not in steady_state(chain("ab", 1, 2), TableCost()).about


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_times_over_tokens_of_the_cycle_told_are_the_period(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    state = steady_state(plan, data.draw(prices(plan)))
    assert state.period_s == pytest.approx(sum(w.time_s for w in state.cycle) / sum(w.tokens for w in state.cycle))
    for wait in state.cycle:
        assert (wait.quota is not None) == (wait.why is ArcKind.QUOTA)
        assert wait.quota is None or wait.quota == plan.regst[str(wait.regst)].quota


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=14))
def test_folding_runs_loses_nothing(words: list[str]):
    unfolded: list[str] = []
    for run in fold_repeats(words):
        body, _, times = run.partition(" x ")
        unfolded += body.strip("()").split(" -> ") * int(times or 1)
    assert unfolded == words
