"""The bookkeeper's links change the counters as messages between Actors do, whatever order acts end in."""

from __future__ import annotations

import random
from collections import deque

import handmade
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import live_dags

from backend.acts.bookkeeper import BegunAct, Bookkeeper
from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind, StreamGate, build_actors
from planner.ir.plan import Plan, TaskKind

STEPS = 3


class Accounted:
    """Blocks of a rank that remember who said what of them."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, int]] = []

    def complete(self, regst: str, slot: int) -> None:
        self.said.append(("complete", regst, slot))

    def release(self, regst: str, slot: int) -> None:
        self.said.append(("release", regst, slot))


def counters(actors: dict[ActorId, Actor]) -> dict[ActorId, object]:
    """All that a token game knows of its actors."""
    return {
        key: (
            actor.acts_begun,
            actor.busy,
            actor.can_fire(),
            [(port.consumed, port.phase, dict(port.received)) for port in actor.inputs.values()],
            [(port.produced, port.phase, dict(port.acked)) for port in actor.outputs.values()],
        )
        for key, actor in actors.items()
    }


def play(plan: Plan, rng: random.Random, *, apart: bool = False) -> None:
    """Both games side by side; ``apart``: each rank has a bookkeeper of its own, and messages between them come late."""
    actors, gates = build_actors(plan, STEPS)
    post: deque[Message] = deque()
    groups = [(rank,) for rank in range(plan.num_ranks)] if apart else [tuple(range(plan.num_ranks))]
    books = [Bookkeeper(plan, STEPS, {rank: Accounted() for rank in ranks}, post.append) for ranks in groups]  # type: ignore[misc]
    book_of = {rank: book for book, ranks in zip(books, groups, strict=True) for rank in ranks}
    running: list[BegunAct] = [act for book in books for act in book.begin_all()]
    payloads: list[tuple[str, int, int, int]] = []
    for actor, _, _ in running:
        _start(actors, gates, actor)
    while running or post or payloads:
        if post and rng.random() < 0.5:
            message = post.popleft()
            actors[message.receiver].receive(message)
            book = book_of[message.receiver[1]]
            begun = book.begin(book.deliver([message]))
        elif payloads and (not running or rng.random() < 0.5):
            task, number, sender, receiver = payloads.pop(0)
            for port in plan.task[task].produces:
                for reader, _ in plan.consumers[port.regst]:
                    actors[reader.id, receiver].receive(Message(MessageKind.READY, port.regst, (task, sender), (reader.id, receiver)))
            book = book_of[receiver]
            begun = book.begin(book.arrive(task, number, sender, receiver))
        elif running:
            act = running.pop(rng.randrange(len(running)))
            actor = act[0]
            book = book_of[actor.rank]
            gates[actor.task.stream, actor.rank].finish()
            for message in actors[actor.id].end():
                elsewhere = book_of[message.receiver[1]] is not book
                if elsewhere and message.kind is MessageKind.READY:  # the payload of a transfer says so when it has come
                    payload = actor.task.id, act[1], actor.rank, message.receiver[1]
                    payloads += [payload] if payload not in payloads else []
                elif not elsewhere:
                    actors[message.receiver].receive(message)
            begun = book.begin(book.finish(act))
        else:
            continue
        for started, _, _ in begun:
            _start(actors, gates, started)
        running += begun
        assert counters({key: actor for each in books for key, actor in each.actors.items()}) == counters(actors)
    assert all(actor.done for actor in actors.values()) and not any(book.unfinished for book in books)


def _start(actors: dict[ActorId, Actor], gates: dict[tuple[str, int], StreamGate], actor: Actor) -> None:
    """The game of messages begins the same act, and would have chosen it."""
    gate = gates[actor.task.stream, actor.rank]
    chosen = gate.choose()
    assert chosen is not None and chosen.id == actor.id
    gate.start(actors[actor.id])


@given(live_dags(), st.randoms(use_true_random=False))
def test_counters_are_those_of_the_game_of_messages_on_random_plans(plan: Plan, rng: random.Random) -> None:
    play(plan, rng)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("plan", [handmade.pipeline(3), handmade.data_parallel(2, 3), handmade.pipeline(3, width=2)])
def test_counters_are_those_of_the_game_of_messages_in_trainings(plan: Plan, apart: bool) -> None:
    assert any(task.kind is TaskKind.UPDATE for task in plan.tasks)
    for seed in range(5):
        play(plan, random.Random(seed), apart=apart)


def test_blocks_of_state_are_never_released_and_those_of_transfers_are_complete_on_the_receiver_once() -> None:
    plan = handmade.pipeline(2)
    blocks = {rank: Accounted() for rank in range(plan.num_ranks)}
    book = Bookkeeper(plan, 1, blocks)  # type: ignore[arg-type]
    acts = book.begin_all()
    while acts:
        acts += book.begin(book.finish(acts.pop()))
    said = [entry for each in blocks.values() for entry in each.said]
    states = {state.regst for state in plan.states}
    assert not any(word == "release" and regst in states for word, regst, _ in said)
    for task in plan.tasks:
        if task.kind is TaskKind.TRANSFER:
            (port,) = task.produces
            receivers = [rank for rank, each in blocks.items() if ("complete", port.regst, 0) in each.said]
            assert set(receivers) == set(plan.ranks_holding(port.regst))
            assert sum(entry[:2] == ("complete", port.regst) for entry in said) == task.acts * len(receivers)
