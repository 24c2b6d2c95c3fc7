"""The discrete-event performer: every stream of every rank is a SimPy process that plays the token game (planner.ir.actors.game).

    t:  acts end, messages arrive            (any number of events at t)
        -- all of t's messages are in --     ("settled", once per instant)
        every idle stream chooses one actor that can fire, and starts it

Choosing only after an instant has settled makes the trace independent of the order in which simultaneous events happen to be processed.

This module is the reference, written to be read; simulator.compiled plays the same game on arrays, and simulate() picks one of the two.
Where computing feels the communication beside it (planner.ir.protocols.Contended), or acts meet on a link between nodes (crowded_links), an
act's time is not known when it starts: then simulator.network.shared plays.
Messages (SEMANTICS 3.3, 3.4): zero latency on a rank, ``cost.message_s(src, dst)`` between ranks.
Collectives (SEMANTICS 3.10): their ranks meet, start together at the latest arrival, and end together.

    rank 0   |chosen . . . waits . . .|== all_reduce ==|      both streams are held from their own arrival on
    rank 1              |chosen       |== all_reduce ==|

Every rank that has chosen the act holds its stream, so ranks that list their collectives in different orders wait for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import simpy
from simpy.events import EventPriority

from planner.ir.actors.actor import Actor, ActorId, Message
from planner.ir.actors.game import Meeting, Observer, StreamKey, TokenGame, by_receiver
from planner.ir.actors.ledger import Ledger
from planner.ir.errors import DeadLock, InvalidPlan, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Trace
from simulator.rules.prices import CheckedPrices, Factor, act_duration_s, slowdown_of
from simulator.rules.sim_trace import Entry, sim_trace

__all__ = ["Engine", "shares_links", "simulate"]

_LOG = logging.getLogger(__name__)

_SETTLED = EventPriority(2)
"""SimPy priority of the end of an instant: after URGENT (0) and NORMAL (1) events of the same time."""


class _Settled(simpy.Event):
    """Fires at the present time, after everything else that happens at it."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=_SETTLED)


class _Game(Observer):
    """The token game with SimPy for its clock: mutable, used once."""

    def __init__(self, plan: Plan, cost: CostModel, steps: int, factor: Factor | None, on_act: Callable[[Act], None] | None) -> None:
        self.factor, self.on_act = factor, on_act
        self.env = simpy.Environment(0.0)
        self.prices = CheckedPrices(plan, cost)
        self.ledger = Ledger()
        self.ready_s: dict[ActorId, float] = {}
        self.settling = False
        self.acts: list[Entry] = []
        self.all_present: dict[tuple[str, tuple[int, ...], int], simpy.Event] = {}
        self.next_act: dict[StreamKey, simpy.Event] = {}
        self.game = TokenGame(plan, steps, (self, self.ledger))
        for actor in self.game.actors.values():
            self.prices.act_s(actor.task, actor.rank)  # an impossible price is refused before the first act
        for stream in self.game.gates:
            self.env.process(self._perform(stream))

    def run(self) -> None:
        self.env.run()
        if not self.game.is_over:
            raise DeadLock(self.game.explain())

    def _perform(self, stream: StreamKey) -> Generator[simpy.Event, Any, None]:
        """One stream of one rank: takes the act that the game chooses for it, meets its peers, lets the time pass."""
        env = self.env
        while True:
            self.next_act[stream] = env.event()
            actor, number = yield self.next_act[stream]
            ready_s = self.ready_s.pop(actor.id)
            duration_s = self._duration_s(actor, actor.rank, number)
            meeting = self.game.meet(actor, number)
            if len(meeting.group) > 1:
                yield self._all_present(meeting)
                duration_s = max(self._duration_s(actor, rank, number) for rank in meeting.group)
            start_s = env.now
            yield env.timeout(duration_s)
            act = Act(actor.task.id, actor.rank, number, ready_s, start_s, env.now)
            self.acts.append((start_s, env.now, self.game.position(actor), number, act))
            if self.on_act is not None:
                self.on_act(act)
            self._send(actor.rank, self.game.end(actor))
            self._settle_later()

    def _duration_s(self, actor: Actor, rank: int, number: int) -> float:
        return act_duration_s(self.prices.act_s(actor.task, rank), self.factor, actor.task.id, rank, number)

    def _all_present(self, meeting: Meeting) -> simpy.Event:
        """Fires when the last rank of a collective has arrived."""
        key = meeting.task, meeting.group, meeting.number
        event = self.all_present.setdefault(key, self.env.event())
        if meeting.is_complete:
            self.all_present.pop(key).succeed()
        return event

    def _send(self, rank: int, messages: Sequence[Message]) -> None:
        for target, bundle in by_receiver(messages).items():
            if target == rank:
                self._deliver(bundle)
                continue
            travel = self.env.timeout(self.prices.message_s(rank, target), bundle)
            assert travel.callbacks is not None
            travel.callbacks.append(lambda event: self._deliver(event.value))

    def _deliver(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.game.deliver(message)

    def ready(self, actor: Actor, message: Message | None) -> None:
        self.ready_s[actor.id] = self.env.now
        self._settle_later()

    def _settle_later(self) -> None:
        """Idle streams may have something to choose once the instant has settled."""
        if not self.settling:
            self.settling = True
            callbacks = _Settled(self.env).callbacks
            assert callbacks is not None
            callbacks.append(self._settle)

    def _settle(self, _: simpy.Event) -> None:
        self.settling = False
        for actor, number in self.game.begin_acts():
            self.next_act[actor.task.stream, actor.rank].succeed((actor, number))


class Engine(Enum):
    """Who plays the game.  Both give the same trace, event for event.

    SIMPY: this module, to be read and trusted.   COMPILED: simulator.compiled, some hundred times as fast; neither knows contention.
    AUTO: SimPy up to AUTO_ACTS acts, which take less time than loading compiled code, else compiled; shared links where acts meet on one.
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
        engine: who plays; the trace's ``about`` says who it was.  AUTO shares links: where acts of different tasks meet on a link between nodes
            and their prices are of acts alone (planner.ir.protocols.AloneOnLinks), simulator.network.shared plays up to AUTO_ACTS acts;
            SIMPY, COMPILED and larger games give every act its links, and ``about`` says so under ``links``.
            ``factor`` and ``on_act`` are for SimPy, so AUTO takes it for them; where AUTO
            cannot take the compiled engine for another reason, it is logged and stands under ``not_compiled`` in ``about``.
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
    crowded = shares_links(plan, cost, engine, steps)
    if slowdown_of(cost) != 1:
        if engine is Engine.COMPILED:
            raise Unsupported(
                f"the compiled engine takes one price per task; with these prices computing takes {slowdown_of(cost):.3g} times as long beside "
                f"communication: use engine simpy or auto"
            )
        from simulator.network import Sharing, simulate_shared

        trace = simulate_shared(
            plan,
            cost,
            steps=steps,
            sharing=Sharing.MAX_MIN if crowded else Sharing.NONE,
            compute_slowdown=slowdown_of(cost),
            factor=factor,
            on_act=on_act,
        )
        return _not_compiled(trace, "computing feels the communication beside it") if _would_compile(engine, watched, total) else trace
    if crowded:
        from simulator.network import simulate_shared

        return simulate_shared(plan, cost, steps=steps, factor=factor, on_act=on_act)
    if not _would_compile(engine, watched, total):
        return _by_simpy(plan, cost, steps, factor, on_act)
    from simulator import compiled  # numba takes some tenths of a second to load, so only where it is used

    try:
        trace = compiled.trace(compiled.compile_plan(plan, cost, fold=fold), steps=steps)
        return _said_of_links(trace, cost)
    except DeadLock:
        # Only actors as objects can tell who waits for whom.  They stop where the arrays stopped, so SimPy raises too.
        return _by_simpy(plan, cost, steps)
    except Unsupported as error:
        if engine is Engine.COMPILED:
            raise
        return _not_compiled(_by_simpy(plan, cost, steps), str(error))


ALONE = "each act has its links to itself: where acts meet on a link between nodes, times are lower bounds"
"""What a trace says under ``links`` whose engine does not share them."""


def shares_links(plan: Plan, cost: CostModel, engine: Engine, steps: int) -> bool:
    """Whether ``simulate`` lets acts share links: see there."""
    total = steps * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    if engine is not Engine.AUTO or total > AUTO_ACTS:
        return False
    from simulator.network.crowded import crowded_links

    return bool(crowded_links(plan, cost))


def _would_compile(engine: Engine, watched: bool, total: int) -> bool:
    """Whether the compiled engine is to play if it can."""
    return engine is Engine.COMPILED or (engine is Engine.AUTO and not watched and total > AUTO_ACTS)


def _not_compiled(trace: Trace, reason: str) -> Trace:
    """The trace of a game that AUTO left to a slower engine: the reason is logged, and stands in ``about``."""
    _LOG.warning("%s plays every rank act by act, as the compiled engine cannot play this: %s", trace.about["engine"], reason)
    return replace(trace, about={**trace.about, "not_compiled": reason})


def _by_simpy(plan: Plan, cost: CostModel, steps: int, factor: Factor | None = None, on_act: Callable[[Act], None] | None = None) -> Trace:
    game = _Game(plan, cost, steps, factor, on_act)
    game.run()
    about = {"cost_model": cost.id, "engine": f"simpy {simpy.__version__}"}
    return _said_of_links(sim_trace(plan, steps, game.acts, game.ledger, about), cost)


def _said_of_links(trace: Trace, cost: CostModel) -> Trace:
    from simulator.network.crowded import prices_are_alone

    return replace(trace, about={**trace.about, "links": ALONE}) if prices_are_alone(cost) else trace
