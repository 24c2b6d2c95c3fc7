"""The game on arrays that orders collectives begins every stream's acts as the token game does."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import dags, live_dags, meshed, prices
from stories import Story

from planner.ir.actors.liveness import play
from planner.ir.errors import DeadLock
from planner.ir.plan import Plan, RegstKind
from planner.lower.orders.begun import begun_acts


def _by_stream(plan: Plan, data: st.DataObject) -> None:
    act_s = data.draw(prices(plan)).act_times_s
    begun: dict[str, list[str]] = defaultdict(list)
    try:
        for firing in play(plan, 1, lambda task: act_s[task.id]):
            begun[plan.task[firing.task].stream].append(firing.task)
    except DeadLock as stuck:
        with pytest.raises(DeadLock, match=str(stuck).split(" ", maxsplit=1)[0]):
            begun_acts(plan, lambda task: act_s[task.id])
        return
    assert begun_acts(plan, lambda task: act_s[task.id]) == {stream.id: tuple(begun[stream.id]) for stream in plan.streams}


@given(st.one_of(dags(max_tasks=8), live_dags(fixed_order=True)), st.data())
def test_acts_begin_on_every_stream_as_in_the_token_game_or_both_are_stuck(plan: Plan, data: st.DataObject) -> None:
    _by_stream(plan, data)


@given(meshed(), st.data())
def test_acts_of_stages_begin_as_in_the_folded_token_game(plan: Plan, data: st.DataObject) -> None:
    _by_stream(plan, data)


def test_a_state_that_its_reader_holds_keeps_its_update_back_and_urgent_acts_go_first() -> None:
    story = Story()
    story.regst("w", "update", kind=RegstKind.STATE)
    story.regst("x", "read", 2)
    story.regst("y", "early", 2)
    story.task("read", {"w": 2}, {"x": 1}, acts=2, stream="a", priority=1)
    story.task("early", {}, {"y": 1}, acts=2, stream="a")
    story.task("update", {"x": 2, "y": 2}, {"w": 1}, stream="b")
    begun = begun_acts(story.freeze(micro_batches=2), lambda task: 1.0)
    assert begun == {"a": ("early", "early", "read", "read"), "b": ("update",)}
