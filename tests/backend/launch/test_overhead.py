"""Between acts: counting what an actor waits for says the same as looking at its ports, and gaps are told apart by what was waited for."""

from __future__ import annotations

import random

import handmade
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_plans import dags

from experiments.benchmarks.acts import BETWEEN, OTHER, SAME, gaps, wake_ups
from planner.ir.actors.actor import Actor, build_actors
from planner.ir.plan import Plan, TaskKind
from planner.ir.traces.trace import Act, Source, Trace


def looks_ready(actor: Actor) -> bool:
    """SEMANTICS 3.1 as it stands there."""
    return (
        not actor.busy
        and actor.acts_begun < actor.total_acts
        and all(port.phase > 0 or min(port.received.values()) > port.consumed for port in actor.inputs.values())
        and all(
            port.phase > 0 or not port.acked or port.produced - min(port.acked.values()) < port.quota for port in actor.outputs.values()
        )
    )


@given(dags(), st.integers(0, 999))
def test_an_actor_can_fire_exactly_when_its_inputs_are_readable_and_its_outputs_free(plan: Plan, seed: int) -> None:
    rng = random.Random(seed)
    actors, gates = build_actors(plan, 2)
    running: list[Actor] = []
    for _ in range(200):
        assert all(actor.can_fire() == looks_ready(actor) for actor in actors.values())
        starts = [(gate, actor) for gate in gates.values() if (actor := gate.choose()) is not None]
        if starts and (not running or rng.random() < 0.5):
            gate, actor = rng.choice(starts)
            gate.start(actor)
            running.append(actor)
        elif running:
            actor = running.pop(rng.randrange(len(running)))
            gates[actor.task.stream, actor.rank].finish()
            for message in actor.end():
                actors[message.receiver].receive(message)
        else:
            break


def test_a_gap_is_counted_from_the_end_of_the_act_that_was_waited_for_last() -> None:
    """forward on rank 0 -> send on its link, 10 us later -> forward on rank 1, 30 us later -> backward on its stream, 3 us later."""
    plan = handmade.pipeline(2)
    first = next(t.id for t in plan.tasks if t.kind is TaskKind.FORWARD and plan.ranks_of(t) == (0,))
    send = next(t.id for t in plan.tasks if t.kind is TaskKind.TRANSFER and plan.ranks_of(t) == (0,))
    second = next(c.id for port in plan.task[send].produces for c, _ in plan.consumers[port.regst])
    back = next(t.id for t in plan.tasks if t.kind is TaskKind.BACKWARD and plan.ranks_of(t) == (1,))
    us = 1e-6
    acts = (
        Act(first, 0, 0, 0.0, 0.0, 100 * us),
        Act(send, 0, 0, 105 * us, 110 * us, 120 * us),
        Act(second, 1, 0, 140 * us, 150 * us, 160 * us),
        Act(back, 1, 0, 160 * us, 163 * us, 170 * us),
    )
    trace = Trace(source=Source.RUN, performer="test", plan_id=plan.plan_id, steps=1, acts=acts)
    gaps_of = gaps(plan, trace, skip_steps=0)
    assert gaps_of[SAME] == pytest.approx([3 * us])
    assert gaps_of[OTHER] == pytest.approx([10 * us])
    assert gaps_of[BETWEEN] == pytest.approx([30 * us])


def test_a_wake_up_between_processes_is_timed_by_each_way() -> None:
    timed = wake_ups(rounds=20)
    assert [row.name.removeprefix("a wake-up by ") for row in timed] == ["socket", "eventfd", "shared memory, never blocking"]
    assert all(row.n == 20 and 0 < row.p10_s <= row.median_s <= row.p90_s for row in timed)
