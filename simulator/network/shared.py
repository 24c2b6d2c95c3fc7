"""A Plan whose communications share the links of its cluster: the third performer of the token game, and the only one with contention.

    all_reduce of gradients   |=====-----------=====|      --- at half speed while another act needs the same nic
    send to the next stage          |----------|
    backward (compute)        |~~~~~~~~~~~~~~~~~~~~~|##    ~~~ slower by ``compute_slowdown`` while its rank communicates

An act has as much work as the cost model gives it seconds, done at speed 1 when alone.  Speeds of acts that need the same link are max-min
fair: a link carries acts whose shares (simulator.network.link_shares) add up to 1, each share times its act's speed.  Rules of firing, streams,
messages and meetings are those of simulator.engine; with nothing shared and no slow-down the trace is bit-equal.

    instant t:  acts end, messages arrive;  then idle streams choose, in the order of the Plan;  then speeds are worked out anew

Source: SEMANTICS 3; fluid sharing as in simulator.network.flows; slow-down of compute: Isaev et al. 2023, "Calculon" (the processor time
that communication takes).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.ir.actors.actor import Actor, ActorId, Message
from planner.ir.actors.game import Meeting, Observer, TokenGame, by_receiver
from planner.ir.actors.ledger import Ledger
from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Trace
from simulator.network.fabric import Machine
from simulator.network.link_loads import LinkLoads
from simulator.network.link_shares import link_shares, point_to_point
from simulator.network.links import Link, Sharing
from simulator.rules.prices import CheckedPrices, Factor, act_duration_s
from simulator.rules.sim_trace import Entry, sim_trace

__all__ = ["simulate_shared"]


@dataclass(slots=True, eq=False)
class _Stream:
    """One stream of one rank, which has a speed: for LinkLoads a link of bandwidth 1 or less."""

    name: str
    rank: int
    computing: bool = False


@dataclass(slots=True, eq=False)
class _Running:
    """An act under way: its actors (all ranks of a collective), its number, its start, and the ranks whose compute it slows."""

    actors: tuple[Actor, ...]
    number: int
    start_s: float
    talking: frozenset[int]


class _SharedGame(Observer):
    """The token game with the links for its clock: mutable, used once."""

    def __init__(
        self,
        plan: Plan,
        cost: CostModel,
        steps: int,
        sharing: Sharing,
        slowdown: float,
        factor: Factor | None,
        on_act: Callable[[Act], None] | None,
    ) -> None:
        self.plan, self.slowdown = plan, slowdown
        self.factor, self.on_act = factor, on_act
        self.prices = CheckedPrices(plan, cost)
        self.ledger = Ledger()
        self.now_s = 0.0
        self.ready_s: dict[ActorId, float] = {}
        self.game = TokenGame(plan, steps, (self, self.ledger))
        for actor in self.game.actors.values():
            self.prices.act_s(actor.task, actor.rank)  # an impossible price is refused before the first act
        self.streams = {key: _Stream(f"stream:{number}", key[1]) for number, key in enumerate(self.game.gates)}
        self.on_rank: dict[int, list[_Stream]] = {}
        for stream in self.streams.values():
            self.on_rank.setdefault(stream.rank, []).append(stream)
        self.machine = Machine(plan.cluster)
        whole = [stream.name for stream in self.streams.values()] + [link.name for link in self.machine.links]
        self.loads = LinkLoads({name: Link(name=name, bandwidth_bytes_per_s=1.0) for name in whole}, sharing)
        self.running: dict[str, _Running] = {}
        self.talks = dict.fromkeys(range(plan.num_ranks), 0)
        self.travelling: list[tuple[float, int, list[Message]]] = []
        self.sent = 0
        self.acts: list[Entry] = []
        self.needs: dict[tuple[str, tuple[int, ...]], tuple[Mapping[str, float], frozenset[int]]] = {}
        self.was_ready_s: dict[ActorId, float] = {}

    def run(self) -> None:
        while True:
            self._settle()
            self.now_s = self._next_s()
            if self.now_s == math.inf:
                break
            while self._next_s() <= self.now_s:
                for name, _ in self.loads.pop_ended(self.now_s):
                    self._end(self.running.pop(name))
                while self.travelling and self.travelling[0][0] <= self.now_s:
                    for message in heapq.heappop(self.travelling)[2]:
                        self.game.deliver(message)
        if self.game.is_over:
            return
        if self.running or self.travelling:
            raise InvalidCluster("this simulation ends after more seconds than a float can hold; lower the prices of the cost model")
        raise DeadLock(self.game.explain())

    def _next_s(self) -> float:
        return min(self.loads.next_end_s(), self.travelling[0][0] if self.travelling else math.inf)

    def ready(self, actor: Actor, message: Message | None) -> None:
        self.ready_s[actor.id] = self.now_s

    def _settle(self) -> None:
        """The instant is over: idle streams choose, then speeds follow from who is under way."""
        complete: list[Meeting] = []
        for actor, number in self.game.begin_acts():
            self.was_ready_s[actor.id] = self.ready_s.pop(actor.id)
            meeting = self.game.meet(actor, number)
            if meeting.is_complete:
                complete.append(meeting)
        for meeting in complete:
            self._start(meeting)
        self.loads.settle(self.now_s)

    def _stream_of(self, actor: Actor) -> _Stream:
        return self.streams[actor.task.stream, actor.rank]

    def _start(self, meeting: Meeting) -> None:
        first, ranks, number = meeting.present[0], meeting.group, meeting.number
        task, stream = first.task, self._stream_of(first)
        duration_s = max(act_duration_s(self.prices.act_s(task, rank), self.factor, task.id, rank, number) for rank in ranks)
        if (task.id, ranks) not in self.needs:
            shares = link_shares(self.plan, task, ranks, duration_s, self.machine)
            self.needs[task.id, ranks] = shares, frozenset(rank for sent in point_to_point(self.plan, task, ranks) for rank in sent[:2])
        shares, talking = self.needs[task.id, ranks]
        name = f"{task.id}@{ranks[0]}#{number}"
        self.running[name] = _Running(tuple(meeting.present), number, self.now_s, talking)
        stream.computing = task.kind.is_compute
        self.loads.enter(name, {stream.name: 1.0, **shares}, duration_s, self.now_s)
        self._pace(stream)
        self._talk(talking, 1)

    def _talk(self, ranks: Iterable[int], more: int) -> None:
        for rank in ranks:
            self.talks[rank] += more
            for stream in self.on_rank.get(rank, ()):
                self._pace(stream)

    def _pace(self, stream: _Stream) -> None:
        self.loads.set_bandwidth(stream.name, 1 / self.slowdown if stream.computing and self.talks[stream.rank] else 1.0)

    def _end(self, run: _Running) -> None:
        self._talk(run.talking, -1)
        for actor in run.actors:
            self._stream_of(actor).computing = False
            act = Act(actor.task.id, actor.rank, run.number, self.was_ready_s.pop(actor.id), run.start_s, self.now_s)
            self.acts.append((run.start_s, self.now_s, self.game.position(actor), run.number, act))
            if self.on_act is not None:
                self.on_act(act)
            self._send(actor.rank, self.game.end(actor))

    def _send(self, rank: int, messages: Sequence[Message]) -> None:
        for target, bundle in by_receiver(messages).items():
            if target == rank:
                for message in bundle:
                    self.game.deliver(message)
            else:
                self.sent += 1
                heapq.heappush(self.travelling, (self.now_s + self.prices.message_s(rank, target), self.sent, bundle))


def simulate_shared(
    plan: Plan,
    cost: CostModel,
    *,
    steps: int = 4,
    sharing: Sharing = Sharing.MAX_MIN,
    compute_slowdown: float = 1.0,
    factor: Factor | None = None,
    on_act: Callable[[Act], None] | None = None,
) -> Trace:
    """Perform ``steps`` steps of a Plan on the clock of a cost model, with contention on the links of the Plan's cluster.

    Args:
        plan: a verified Plan.
        cost: seconds per act and per message, each act alone on its links.
        steps: training steps.
        sharing: MAX_MIN, or NONE for acts that do not feel each other.
        compute_slowdown: how many times as long compute takes while its rank sends or receives; 1: it does not feel communication.
        factor, on_act: as in ``simulator.simulate``.

    Returns:
        A SIM trace, acts sorted by start, peaks as in ``simulate``.

    Raises:
        InvalidPlan: steps < 1.   Unsupported: sharing FIFO, or a slow-down below 1 or not finite.   InvalidCluster: an impossible price.
        DeadLock: some act can never start (SEMANTICS 4.1).
    """
    if steps < 1:
        raise InvalidPlan(f"steps = {steps}; a simulation performs at least 1 step")
    if sharing is Sharing.FIFO:
        raise Unsupported("acts of a Plan under FIFO: the lines of an axis are priced together and would queue; use max_min or none")
    if not (math.isfinite(compute_slowdown) and compute_slowdown >= 1):
        raise Unsupported(f"compute_slowdown = {compute_slowdown}; it is how many times as long compute takes, so at least 1")
    game = _SharedGame(plan, cost, steps, sharing, compute_slowdown, factor, on_act)
    game.run()
    about = {"cost_model": cost.id, "engine": "shared links", "sharing": sharing.value, "compute_slowdown": str(compute_slowdown)}
    return sim_trace(plan, steps, game.acts, game.ledger, about)
