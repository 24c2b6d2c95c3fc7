"""The discrete-event performer: every stream of every rank is a SimPy process that plays the token game (planner.ir.actors.game).

    t:  acts end, messages arrive            (any number of events at t)
        -- all of t's messages are in --     ("settled", once per instant)
        every idle stream chooses one actor that can fire, and starts it

Choosing only after an instant has settled makes the trace independent of the order in which simultaneous events happen to be processed.

This module is the reference, written to be read; simulator.compiled plays the same game on arrays, and simulator.engine picks one of the two.
Where acts feel each other (simulator.network.act_flows), an act's time is not known when it starts: simulator.pacing says when it ends.
Messages (SEMANTICS 3.3, 3.4): zero latency on a rank, ``cost.message_s(src, dst)`` between ranks.
Collectives (SEMANTICS 3.10): their ranks meet, start together at the latest arrival, and end together.

    rank 0   |chosen . . . waits . . .|== all_reduce ==|      both streams are held from their own arrival on
    rank 1              |chosen       |== all_reduce ==|

Every rank that has chosen the act holds its stream, so ranks that list their collectives in different orders wait for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import simpy

from planner.ir.actors.actor import Actor, ActorId, Message
from planner.ir.actors.game import Meeting, Observer, StreamKey, TokenGame, by_receiver
from planner.ir.actors.ledger import Ledger
from planner.ir.errors import DeadLock, InvalidCluster
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Trace
from simulator.network.act_flows import Contention
from simulator.pacing import At, Pace
from simulator.rules.prices import CheckedPrices, Factor, act_duration_s
from simulator.rules.sim_trace import Entry, sim_trace

__all__ = ["by_simpy"]

OnAct = Callable[[Act], None]

_SETTLED = 2
"""Priority of the event at which streams choose: after all ends and messages of its time (SimPy's URGENT is 0, NORMAL 1)."""


class _Game(Observer):
    """The token game with SimPy for its clock: mutable, used once."""

    def __init__(
        self, plan: Plan, cost: CostModel, steps: int, contention: Contention | None, factor: Factor | None, on_act: OnAct | None
    ) -> None:
        self.factor, self.on_act = factor, on_act
        self.env = simpy.Environment(0.0)
        self.pace = Pace(self.env, contention) if contention is not None else None
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
        if math.isinf(self.env.now):
            raise InvalidCluster("this simulation ends after more seconds than a float can hold; lower the prices of the cost model")
        if not self.game.is_over:
            raise DeadLock(self.game.explain())

    def _perform(self, stream: StreamKey) -> Generator[simpy.Event, Any, None]:
        """One stream of one rank: takes the act that the game chooses for it, meets its peers, lets the time pass."""
        env = self.env
        while True:
            self.next_act[stream] = env.event()
            actor, number = yield self.next_act[stream]
            ready_s = self.ready_s.pop(actor.id)
            meeting = self.game.meet(actor, number)
            if len(meeting.group) > 1:
                duration_s = yield self._all_present(meeting, actor)
            else:
                duration_s = self._duration_s(actor, actor.rank, number)
            start_s = env.now
            yield env.timeout(duration_s) if self.pace is None else self.pace.perform(actor.task, meeting.group, duration_s)
            act = Act(actor.task.id, actor.rank, number, ready_s, start_s, env.now)
            self.acts.append((start_s, env.now, self.game.position(actor), number, act))
            if self.on_act is not None:
                self.on_act(act)
            self._send(actor.rank, self.game.end(actor))
            self._settle_later()

    def _duration_s(self, actor: Actor, rank: int, number: int) -> float:
        return act_duration_s(self.prices.act_s(actor.task, rank), self.factor, actor.task.id, rank, number)

    def _all_present(self, meeting: Meeting, actor: Actor) -> simpy.Event:
        """Fires when the last rank of a collective has arrived, with the seconds that it takes: of the slowest rank."""
        key = meeting.task, meeting.group, meeting.number
        event = self.all_present.setdefault(key, self.env.event())
        if meeting.is_complete:
            self.all_present.pop(key).succeed(max(self._duration_s(actor, rank, meeting.number) for rank in meeting.group))
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
            callbacks = At(self.env, _SETTLED).callbacks
            assert callbacks is not None
            callbacks.append(self._settle)

    def _settle(self, _: simpy.Event) -> None:
        self.settling = False
        for actor, number in self.game.begin_acts():
            self.next_act[actor.task.stream, actor.rank].succeed((actor, number))


def by_simpy(
    plan: Plan,
    cost: CostModel,
    steps: int,
    contention: Contention | None = None,
    factor: Factor | None = None,
    on_act: OnAct | None = None,
) -> Trace:
    """The Trace of a game.

    Args:
        as simulator.simulate.   contention: what acts feel of each other; None: nothing.

    Raises:
        DeadLock: some act can never start.   InvalidCluster: an impossible price, or times beyond a float.
    """
    game = _Game(plan, cost, steps, contention, factor, on_act)
    game.run()
    about = {"cost_model": cost.id, "engine": f"simpy {simpy.__version__}"}
    return sim_trace(plan, steps, game.acts, game.ledger, about | (contention.about if contention is not None else {}))
