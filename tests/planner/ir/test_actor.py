"""One actor by hand: when it may fire, what it tells whom (SEMANTICS 3.1 to 3.6), and whom a stream starts (3.4)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from matrix import read_plan
from stories import Story, chain

from planner.ir.actors.actor import Actor, ActorId, InPort, Message, MessageKind, OutPort, StreamGate, build_actors
from planner.ir.errors import InvalidPlan
from planner.ir.plan import RegstKind, Task, TaskKind

A, C, ONE, TWO = ("a", 0), ("c", 0), ("one", 0), ("two", 0)


def task(name: str = "b", *, acts: int = 1, priority: int = 0) -> Task:
    (made,) = chain(name, 1, acts).tasks
    return made if not priority else Task(**{f: getattr(made, f) for f in made.__dataclass_fields__} | {"priority": priority})


def actor(
    *, sources: Iterable[ActorId] = (), sinks: Iterable[ActorId] = (), quota: int = 1, takes: int = 1, fills: int = 1, acts: int = 9
) -> Actor:
    """It reads Regst in from the sources and writes Regst out for the sinks."""
    inputs = {"in": InPort("in", 9, takes, dict.fromkeys(sources, 0))} if sources else {}
    outputs = {"out": OutPort("out", quota, fills, dict.fromkeys(sinks, 0))} if sinks else {}
    return Actor(task=task(), rank=0, inputs=inputs, outputs=outputs, total_acts=acts)


def ready(sender: ActorId = A) -> Message:
    return Message(MessageKind.READY, "in", sender, ("b", 0))


def ack(sender: ActorId = C) -> Message:
    return Message(MessageKind.ACK, "out", sender, ("b", 0))


def told(messages: Iterable[Message]) -> list[tuple[str, str, ActorId, ActorId]]:
    return [(m.kind.value, m.regst, m.sender, m.receiver) for m in messages]


def act(one: Actor) -> list[tuple[str, str, ActorId, ActorId]]:
    one.begin()
    return told(one.end())


def test_it_fires_when_every_source_has_sent_and_tells_them_after_the_act() -> None:
    one = actor(sources=(ONE, TWO))
    assert not one.can_fire()
    one.receive(ready(ONE))
    one.receive(ready(ONE))
    assert not one.can_fire(), "two blocks of one source are not one of each"
    one.receive(ready(TWO))
    assert one.can_fire()
    assert act(one) == [("ack", "in", ("b", 0), ONE), ("ack", "in", ("b", 0), TWO)]
    assert not one.can_fire()
    one.receive(ready(TWO))
    assert one.can_fire(), "the other source's second block lay there already"


def test_it_fires_while_a_block_is_free_which_is_when_every_consumer_has_given_it_back() -> None:
    one = actor(sinks=(ONE, TWO), quota=2)
    assert one.can_fire()
    assert act(one) == [("ready", "out", ("b", 0), ONE), ("ready", "out", ("b", 0), TWO)]
    act(one)
    assert not one.can_fire()
    one.receive(ack(ONE))
    one.receive(ack(ONE))
    assert not one.can_fire()
    one.receive(ack(TWO))
    assert one.can_fire()
    act(one)
    assert not one.can_fire()


def test_sources_and_free_blocks_are_both_needed() -> None:
    one = actor(sources=(A,), sinks=(C,))
    one.receive(ready())
    assert act(one) == [("ready", "out", ("b", 0), C), ("ack", "in", ("b", 0), A)]
    one.receive(ready())
    assert not one.can_fire()
    one.receive(ack())
    assert one.can_fire()
    act(one)
    one.receive(ack())
    assert not one.can_fire()
    one.receive(ready())
    assert one.can_fire()


def test_several_acts_keep_one_block_and_several_fill_one() -> None:
    keeps = actor(sources=(A,), takes=2)
    keeps.receive(ready())
    assert act(keeps) == [] and keeps.can_fire()
    assert act(keeps) == [("ack", "in", ("b", 0), A)] and not keeps.can_fire()
    fills = actor(sinks=(C,), fills=2)
    assert act(fills) == [] and fills.can_fire(), "the block that it is filling is its own"
    assert act(fills) == [("ready", "out", ("b", 0), C)] and not fills.can_fire()
    fills.receive(ack())
    assert fills.can_fire()


def test_a_message_in_the_midst_of_a_block_counts_for_the_next() -> None:
    keeps = actor(sources=(A,), takes=2)
    keeps.receive(ready())
    act(keeps)
    keeps.receive(ready())
    act(keeps)
    assert keeps.can_fire()
    fills = actor(sinks=(C,), fills=2, quota=2)
    act(fills), act(fills), act(fills)
    fills.receive(ack())
    act(fills)
    assert fills.can_fire()
    act(fills), act(fills)
    assert not fills.can_fire()


def test_it_acts_one_after_the_other_and_as_often_as_it_is_to() -> None:
    one = actor(acts=2)
    assert one.id == ("b", 0) and not one.done
    assert one.begin() == 0
    assert not one.can_fire()
    with pytest.raises(InvalidPlan, match=r"actor b on rank 0 was started although it cannot fire .SEMANTICS 3.1."):
        one.begin()
    one.end()
    assert one.can_fire() and one.begin() == 1
    assert not one.done
    one.end()
    assert one.done and not one.can_fire()


def test_blocks_are_used_in_turn() -> None:
    one = actor(sources=(A,), sinks=(C,), quota=2)
    incoming, outgoing = one.inputs["in"], one.outputs["out"]
    slots = []
    for _ in range(3):
        one.receive(ready())
        slots.append((incoming.slot, outgoing.slot))
        act(one)
        one.receive(ack())
    assert slots == [(0, 0), (1, 1), (2, 0)]


# --- streams -----------------------------------------------------------------------------------------------------------------


def free(name: str, *, priority: int = 0, acts: int = 4) -> Actor:
    return Actor(task=task(name, priority=priority), rank=0, inputs={}, outputs={}, total_acts=acts)


def waiting(name: str) -> Actor:
    return Actor(task=task(name), rank=0, inputs={"in": InPort("in", 1, 1, {A: 0})}, outputs={}, total_acts=4)


def test_a_stream_performs_one_act_at_a_time() -> None:
    gate = StreamGate(members=[free("x"), free("y")])
    first = gate.choose()
    assert first is not None and first.task.id == "x"
    assert gate.start(first) == 0 and gate.running == ("x", 0) and gate.choose() is None
    first.end()
    gate.finish()
    second = gate.choose()
    assert second is not None and second.task.id == "y", "the one that has acted less"


def test_a_stream_with_an_order_starts_whose_turn_it_is_and_nobody_else() -> None:
    x, y = free("x"), free("y")
    gate = StreamGate(order=("y", "x", "x"), members=[x, y])
    started = []
    for _ in range(7):
        one = gate.choose()
        assert one is not None
        gate.start(one)
        one.end()
        gate.finish()
        started.append(one.task.id)
    assert "".join(started) == "yxxyxxy"[:7]
    assert StreamGate(order=("x", "y"), members=[waiting("x"), free("y")]).choose() is None


def test_without_an_order_the_earlier_step_then_the_lower_priority_then_the_earlier_act_comes_first() -> None:
    assert StreamGate(members=[waiting("x")]).choose() is None is StreamGate().choose()
    x, y = free("x"), free("y")
    for first, second in ((x, y), (y, x)):
        assert StreamGate(members=[first, second]).choose() is first
    urgent = free("y", priority=-1)
    assert StreamGate(members=[x, urgent]).choose() is urgent is StreamGate(members=[urgent, x]).choose()
    urgent.begin(), urgent.end()
    assert StreamGate(members=[x, urgent]).choose() is x is StreamGate(members=[urgent, x]).choose(), "an earlier step"
    assert StreamGate(members=[waiting("z"), y]).choose() is y is StreamGate(members=[y, waiting("z")]).choose()


# --- all actors of a Plan ----------------------------------------------------------------------------------------------------


def test_state_is_readable_at_once_and_data_is_not() -> None:
    actors, gates = build_actors(chain("ab", 1, 2), 3)
    a, b = actors["a", 0], actors["b", 0]
    assert (a.total_acts, b.total_acts) == (6, 6) and a.can_fire() and not b.can_fire()
    assert set(gates) == {(a.task.stream, 0), (b.task.stream, 0)}
    assert act(a) == [("ready", "Regst_a", ("a", 0), ("b", 0))]
    plan = read_plan("mlp", "pipeline2_data2", "fp32")
    actors, gates = build_actors(plan, 1)
    assert set(actors) == {(t.id, rank) for t in plan.tasks for rank in plan.ranks_of(t)}
    for (name, rank), one in actors.items():
        assert (one.task.id, one.rank, one.total_acts) == (name, rank, one.task.acts)
        assert one in gates[one.task.stream, rank].members and gates[one.task.stream, rank].order == plan.stream[one.task.stream].order
        for port in one.task.consumes:
            regst, incoming = plan.regst[port.regst], one.inputs.get(port.regst)
            if regst.producer is None:
                assert incoming is None
                continue
            assert incoming is not None
            assert incoming.readable == (regst.kind is RegstKind.STATE) and incoming.acts_per_block == port.acts_per_block
            assert {source for source, _ in incoming.received} == {regst.producer}
            if plan.task[regst.producer].kind is not TaskKind.TRANSFER:
                assert {at for _, at in incoming.received} == {rank}
        for port in one.task.produces:
            outgoing = one.outputs[port.regst]
            assert outgoing.quota == plan.regst[port.regst].quota and outgoing.acts_per_block == port.acts_per_block
            assert {sink for sink, _ in outgoing.acked} == {consumer.id for consumer, _ in plan.consumers[port.regst]}
            assert outgoing.free == (plan.regst[port.regst].kind is not RegstKind.STATE or not outgoing.acked)


def test_folded_there_is_one_actor_per_task() -> None:
    plan = read_plan("mlp", "pipeline2_data2", "fp32")
    actors, gates = build_actors(plan, 2, folded=True)
    assert set(actors) == {(t.id, -1) for t in plan.tasks} and {rank for _, rank in gates} == {-1}
    for (name, _), one in actors.items():
        assert one.total_acts == 2 * plan.task[name].acts
        for port in one.outputs.values():
            assert set(port.acked) == {(consumer.id, -1) for consumer, _ in plan.consumers[port.regst]}
        for port in one.inputs.values():
            assert set(port.received) == {(plan.regst[port.regst].producer, -1)}


def test_a_story_has_its_state_before_the_first_act() -> None:
    story = Story()
    story.regst("r", "x")
    story.task("x", produces=["r"])
    story.task("y", ["r"])
    assert [one.can_fire() for one in build_actors(story.freeze(), 1)[0].values()] == [True, False]
