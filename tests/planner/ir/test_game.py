"""The token game without a clock: who is told what, and that every driver plays the same game."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import Story, TableCost, chain, data_parallel, pipeline

from planner.ir.actors.actor import Actor, Message, MessageKind
from planner.ir.actors.game import Observer, TokenGame
from planner.ir.actors.liveness import play
from planner.ir.actors.peak import live_bytes
from planner.ir.plan import TaskKind
from simulator import Engine, simulate


class Log(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def ready(self, actor: Actor, message: Message | None) -> None:
        why = "" if message is None else f" after {message.kind.value} of {message.regst}"
        self.lines.append(f"{actor.task.id} ready{why}")

    def began(self, actor: Actor) -> None:
        self.lines.append(f"{actor.task.id} begins")

    def ended(self, actor: Actor) -> None:
        self.lines.append(f"{actor.task.id} ends")


def test_an_observer_hears_what_made_each_actor_ready():
    log = Log()
    play(chain("ab", 1, 2), observer=log)
    assert log.lines == [
        "a ready", "a begins", "a ends",
        "b ready after ready of Regst_a", "b begins", "b ends",  # one block: a waits until b has given it back
        "a ready after ack of Regst_a", "a begins", "a ends",
        "b ready after ready of Regst_a", "b begins", "b ends",
    ]  # fmt: skip


def test_a_collective_starts_when_its_last_rank_has_arrived_and_others_meet_nobody():
    game = TokenGame(data_parallel(2), 1)
    loads = [game.meet(actor, number) for actor, number in game.begin_acts()]
    assert [(meeting.group, meeting.is_complete) for meeting in loads] == [((0,), True), ((1,), True)]
    reduces = [game.actors["all_reduce", rank] for rank in (1, 0)]
    assert [game.meet(actor, 0).is_complete for actor in reduces] == [False, True]
    assert game.meet(reduces[0], 1).present == [reduces[0]], "the next act is another meeting"


def test_a_message_that_completes_nothing_makes_nobody_ready():
    game = TokenGame(pipeline(2, 2), 1)
    (load, _), *_ = game.begin_acts()
    ready = [message for message in game.end(load) if message.kind is MessageKind.READY]
    assert game.choice(("compute0", 0)) is None
    game.deliver(ready[0])
    chosen = game.choice(("compute0", 0))
    assert chosen is not None and chosen.task.id == "F0"
    assert game.choice(("compute1", 1)) is None


def test_streams_begin_in_the_order_of_the_plan_whichever_was_ready_first():
    story = Story()
    for reader in ("left", "right"):
        story.regst(f"for_{reader}", "load")
    story.task("load", produces=["for_left", "for_right"], kind=TaskKind.SOURCE)
    story.task("left", ["for_left"])
    story.task("right", ["for_right"])
    for last_first in (False, True):
        game = TokenGame(story.freeze(), 1)
        ((load, _),) = game.begin_acts()
        messages = game.end(load)
        assert [message.receiver[0] for message in messages] == ["left", "right"]
        for message in reversed(messages) if last_first else messages:
            game.deliver(message)
        assert [actor.task.id for actor, _ in game.begin_acts()] == ["left", "right"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_playing_with_durations_is_the_simulation_of_one_rank(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=data.draw(st.booleans())))
    cost: TableCost = data.draw(prices(plan))
    trace = simulate(plan, cost, steps=2, engine=Engine.SIMPY)
    fired = [(f.task, f.act, f.start_s, f.end_s) for f in play(plan, 2, lambda task: cost.act_s(plan, task, 0))]
    assert sorted(fired) == sorted((act.task, act.number, act.start_s, act.end_s) for act in trace.acts)
    assert live_bytes(plan, lambda task: cost.act_s(plan, task, 0)) == {0: trace.peak_bytes["0"]}
