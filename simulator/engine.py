"""The discrete-event performer: every stream of every rank is a SimPy process that steps the actors of planner.ir.actors.actor.

    t:  acts end, messages arrive            (any number of events at t)
        -- all of t's messages are in --     ("settled", once per instant)
        every idle stream chooses one actor that can fire, and starts it

Choosing only after an instant has settled makes the trace independent of the order in which simultaneous events happen to be processed.

This module is the reference, written to be read; simulator.compiled plays the same game on arrays, and simulate() picks one of the two.
Where computing feels the communication beside it (planner.ir.protocols.Contended), an act's time is not known when it starts: then
simulator.network.shared plays.
Messages (SEMANTICS 3.3, 3.4): zero latency on a rank, ``cost.message_s(src, dst)`` between ranks.
Collectives (SEMANTICS 3.10): see simulator.rules.rendezvous.   Memory (SEMANTICS 5, law 5): see simulator.rules.memory.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator, Iterable
from enum import Enum
from typing import cast

import simpy
from simpy.events import EventPriority

from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind, StreamGate, build_actors
from planner.ir.actors.liveness import explain_wait
from planner.ir.errors import DeadLock, InvalidPlan, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Trace
from simulator.rules.memory import Ledger
from simulator.rules.prices import Factor, checked_s, felt_s, slowdown_of
from simulator.rules.record import Entry, sim_trace
from simulator.rules.rendezvous import Meeting, explain_meetings

__all__ = ["Engine", "simulate"]

_SETTLED = EventPriority(2)
"""SimPy priority of the end of an instant: after URGENT (0) and NORMAL (1) events of the same time."""


class _Settled(simpy.Event):
    """Fires at the present time, after everything else that happens at it."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=_SETTLED)


class _Lane:
    """One stream of one rank.  ``gate.members`` is narrowed to those that can fire, in Plan order: once ready, an actor stays ready."""

    __slots__ = ("gate", "left", "number", "wake")

    def __init__(self, number: int, gate: StreamGate) -> None:
        self.number = number
        self.gate = gate
        self.left = sum(actor.total_acts for actor in gate.members)
        self.wake: simpy.Event | None = None
        gate.members = []


class _Game:
    """The whole token game: mutable, used once."""

    def __init__(self, plan: Plan, cost: CostModel, steps: int, factor: Factor | None, on_act: Callable[[Act], None] | None) -> None:
        self.plan, self.cost = plan, cost
        self.factor, self.on_act = factor, on_act
        self.env = simpy.Environment(0.0)
        self.actors, self.gates = build_actors(plan, steps)
        self.place = {actor_id: number for number, actor_id in enumerate(self.actors)}
        self.lanes = {key: _Lane(number, gate) for number, (key, gate) in enumerate(self.gates.items())}
        self.lane_of = {actor.id: self.lanes[actor.task.stream, actor.rank] for actor in self.actors.values()}
        self.ready_s: dict[ActorId, float] = {}
        self.stirred: dict[int, _Lane] = {}
        self.meetings: dict[tuple[str, tuple[int, ...], int], Meeting] = {}
        self.peers: dict[ActorId, tuple[int, ...]] = {}
        self.ledger = Ledger(plan, self.actors.values())
        self.acts: list[Entry] = []
        self.price_s: dict[ActorId, float] = {}
        self.latency_s: dict[tuple[int, int], float] = {}
        for actor in self.actors.values():
            self.price_s[actor.id] = checked_s(cost.act_s(plan, actor.task, actor.rank), f"an act of {actor.task.id} on rank {actor.rank}")
            self.peers[actor.id] = plan.peers(actor.task, actor.rank)
            self._note_ready(actor)
        for lane in self.lanes.values():
            self.env.process(self._perform(lane))

    def run(self) -> None:
        self.env.run()
        if all(actor.done for actor in self.actors.values()):
            return
        if self.meetings:
            raise DeadLock(explain_meetings(self.plan, self.actors, self.gates, tuple(self.meetings.values())))
        raise DeadLock(explain_wait(self.plan, self.actors, self.gates))

    def _perform(self, lane: _Lane) -> Generator[simpy.Event, object, None]:
        gate, env = lane.gate, self.env
        while lane.left:
            actor = gate.choose()
            if actor is None:
                lane.wake = env.event()
                yield lane.wake
                lane.wake = None
                continue
            ready_s = self.ready_s.pop(actor.id)
            gate.members.remove(actor)
            number = gate.start(actor)
            self.ledger.begin(actor)
            duration_s = self._duration_s(actor.task.id, actor.rank, number)
            if len(group := self.peers[actor.id]) > 1:
                meeting = self._meet(actor, group, number)
                yield meeting.complete
                duration_s = max(self._duration_s(actor.task.id, rank, number) for rank in group)
            start_s = env.now
            yield env.timeout(duration_s)
            gate.finish()
            lane.left -= 1
            act = Act(actor.task.id, actor.rank, number, ready_s, start_s, env.now)
            self.acts.append((start_s, env.now, self.place[actor.id], number, act))
            if self.on_act is not None:
                self.on_act(act)
            messages = actor.end()
            self.ledger.end(actor)
            self._send(actor.rank, messages)
            self._note_ready(actor)
            if lane.left:
                lane.wake = env.event()
                if gate.members:
                    self._stir(lane)
                yield lane.wake
                lane.wake = None

    def _duration_s(self, task: str, rank: int, number: int) -> float:
        return felt_s(self.price_s[task, rank], self.factor, task, rank, number)

    def _meet(self, actor: Actor, group: tuple[int, ...], number: int) -> Meeting:
        """Join the collective; the last one to arrive lets everybody go."""
        key = actor.task.id, group, number
        meeting = self.meetings.setdefault(key, Meeting(actor.task.id, number, group, self.env.event()))
        meeting.present.append(actor.rank)
        if len(meeting.present) == len(group):
            del self.meetings[key]
            meeting.complete.succeed()
        return meeting

    def _send(self, rank: int, messages: Iterable[Message]) -> None:
        remote: dict[int, list[Message]] = {}
        for message in messages:
            if message.receiver[1] == rank:
                self._receive(message)
            else:
                remote.setdefault(message.receiver[1], []).append(message)
        for target, bundle in remote.items():
            if (rank, target) not in self.latency_s:
                latency_s = checked_s(self.cost.message_s(rank, target), f"a message from rank {rank} to rank {target}")
                self.latency_s[rank, target] = latency_s
            travel = self.env.timeout(self.latency_s[rank, target], bundle)
            assert travel.callbacks is not None
            travel.callbacks.append(self._arrive)

    def _arrive(self, travel: simpy.Event) -> None:
        for message in cast(list[Message], travel.value):
            self._receive(message)

    def _receive(self, message: Message) -> None:
        actor = self.actors[message.receiver]
        actor.receive(message)
        if message.kind is MessageKind.ACK:
            self.ledger.acknowledged(actor, message)
        self._note_ready(actor)

    def _note_ready(self, actor: Actor) -> None:
        """Put the actor among its stream's candidates as soon as it can fire."""
        if actor.busy or actor.id in self.ready_s or not actor.can_fire():
            return
        self.ready_s[actor.id] = self.env.now
        lane = self.lane_of[actor.id]
        insort(lane.gate.members, actor, key=lambda a: self.place[a.id])
        self._stir(lane)

    def _stir(self, lane: _Lane) -> None:
        """This stream may have something to choose once the instant has settled."""
        if lane.gate.running is not None:
            return
        if not self.stirred:
            callbacks = _Settled(self.env).callbacks
            assert callbacks is not None
            callbacks.append(self._settle)
        self.stirred[lane.number] = lane

    def _settle(self, _: simpy.Event) -> None:
        stirred, self.stirred = self.stirred, {}
        for number in sorted(stirred):
            wake = stirred[number].wake
            if wake is not None and not wake.triggered:
                wake.succeed()


class Engine(Enum):
    """Who plays the game.  Both give the same trace, event for event.

    SIMPY: this module, to be read and trusted.   COMPILED: simulator.compiled, some hundred times as fast; knows no contention.
    AUTO: SimPy up to AUTO_ACTS acts, which take less time than loading compiled code, else compiled.
    """

    AUTO = "auto"
    SIMPY = "simpy"
    COMPILED = "compiled"


AUTO_ACTS = 20_000
"""Acts of all ranks and steps; SimPy performs them in the time that the compiled kernels take to load from their cache [measured]."""


def simulate(
    plan: Plan,
    cost: CostModel,
    *,
    steps: int = 4,
    max_acts: int | None = None,
    factor: Factor | None = None,
    on_act: Callable[[Act], None] | None = None,
    engine: Engine = Engine.AUTO,
    fold: bool = True,
) -> Trace:
    """Perform ``steps`` steps of a Plan on the clock of a cost model.

    Args:
        plan: a verified Plan.
        cost: seconds per act and per message; asked once per task and rank.
        steps: training steps; the fill of the pipeline is part of the first.
        max_acts: refuse a game of more acts than this (all ranks, all steps); None: no limit.
        factor: times the price, act by act (stragglers, noise); None: every act takes its price.
        on_act: told of every act when it ends, in that order (progress, partial traces); what it raises ends the simulation.
        engine: who plays; the trace's ``about`` says who it was.  ``factor`` and ``on_act`` are for SimPy, so AUTO takes it for them.
        fold: the compiled engine plays one of each class of equal ranks and copies it; SimPy always plays all.

    Returns:
        A SIM trace, acts sorted by start; peak_bytes per rank: state + blocks between first write and last ack + running workspaces.

    Raises:
        InvalidPlan: steps < 1.   Unsupported: more than max_acts acts; engine COMPILED with factor or on_act, with prices whose computing
            feels communication, on blocks of 2^60 bytes or on 2^28 firings.
        InvalidCluster: a price that is negative or not finite.
        DeadLock: some act can never start (SEMANTICS 4.1); the message names the cycle.

    Source: SEMANTICS 3, oneflow.md 1.1 and 1.2.
    """
    if steps < 1:
        raise InvalidPlan(f"steps = {steps}; a simulation performs at least 1 step")
    total = steps * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    if max_acts is not None and total > max_acts:
        raise Unsupported(
            f"{steps} steps of this plan are {total} acts, more than max_acts = {max_acts}; simulate fewer steps or raise max_acts"
        )
    watched = factor is not None or on_act is not None
    if engine is Engine.COMPILED and watched:
        raise Unsupported(
            "the compiled engine takes one price per task and tells nobody of acts; leave out factor and on_act or use engine simpy"
        )
    if slowdown_of(cost) != 1:
        if engine is Engine.COMPILED:
            raise Unsupported(
                f"the compiled engine takes one price per task; with these prices computing takes {slowdown_of(cost):.3g} times as long beside "
                f"communication: use engine simpy or auto"
            )
        from simulator.network import Sharing, simulate_shared

        return simulate_shared(
            plan, cost, steps=steps, sharing=Sharing.NONE, compute_slowdown=slowdown_of(cost), factor=factor, on_act=on_act
        )
    if engine is Engine.SIMPY or watched or (engine is Engine.AUTO and total <= AUTO_ACTS):
        return _by_simpy(plan, cost, steps, factor, on_act)
    from simulator import compiled  # numba takes some tenths of a second to load, so only where it is used

    try:
        return compiled.trace(compiled.compile_plan(plan, cost, fold=fold), steps=steps)
    except DeadLock:
        # Only actors as objects can tell who waits for whom.  They stop where the arrays stopped, so SimPy raises too.
        return _by_simpy(plan, cost, steps)
    except Unsupported:
        if engine is Engine.COMPILED:
            raise
        return _by_simpy(plan, cost, steps)


def _by_simpy(plan: Plan, cost: CostModel, steps: int, factor: Factor | None = None, on_act: Callable[[Act], None] | None = None) -> Trace:
    game = _Game(plan, cost, steps, factor, on_act)
    game.run()
    return sim_trace(plan, steps, game.acts, game.ledger, {"cost_model": cost.id, "engine": f"simpy {simpy.__version__}"})
