"""A Plan whose communications share the links of its cluster: the third performer of the token game, and the only one with contention.

    all_reduce of gradients   |=====-----------=====|      --- at half speed while another act needs the same nic
    send to the next stage          |----------|
    backward (compute)        |~~~~~~~~~~~~~~~~~~~~~|##    ~~~ slower by ``compute_slowdown`` while its rank communicates

An act has as much work as the cost model gives it seconds, done at speed 1 when alone.  Speeds of acts that need the same link are max-min
fair: a link carries acts whose shares (simulator.network.usage) add up to 1, each share times its act's speed.  Rules of firing, streams,
messages and meetings are those of simulator.engine; with nothing shared and no slow-down the trace is the same to the last bit.

    instant t:  acts end, messages arrive;  then idle streams choose, in the order of the Plan;  then speeds are worked out anew

Source: SEMANTICS 3; fluid sharing as in simulator.network.flows; slow-down of compute: Isaev et al. 2023, "Calculon" (the processor time
that communication takes).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import simpy

from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind, StreamGate, build_actors
from planner.ir.actors.liveness import explain_wait
from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Trace
from simulator.network.fabric import Machine
from simulator.network.links import Link, Sharing
from simulator.network.usage import hops, link_shares
from simulator.network.wires import Wires
from simulator.rules.memory import Ledger
from simulator.rules.prices import Factor, checked_s, felt_s
from simulator.rules.record import Entry, sim_trace
from simulator.rules.rendezvous import Meeting, explain_meetings

__all__ = ["simulate_shared"]


@dataclass(slots=True, eq=False)
class _Lane:
    """One stream of one rank; ``gate.members`` holds those that can fire."""

    name: str
    number: int
    rank: int
    gate: StreamGate
    computing: bool = False


@dataclass(slots=True, eq=False)
class _Running:
    """An act under way: its actors (all ranks of a collective), their arrival, and the ranks whose compute it slows."""

    actors: tuple[Actor, ...]
    number: int
    start_s: float
    talking: frozenset[int]


class _SharedGame:
    """Mutable, used once."""

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
        self.plan, self.cost, self.slowdown = plan, cost, slowdown
        self.factor, self.on_act = factor, on_act
        self.actors, gates = build_actors(plan, steps)
        self.gates = gates
        self.place = {actor_id: number for number, actor_id in enumerate(self.actors)}
        self.lane_of: dict[ActorId, _Lane] = {}
        lanes: list[_Lane] = []
        for number, ((_, rank), gate) in enumerate(gates.items()):
            lanes.append(_Lane(f"stream:{number}", number, rank, gate))
            self.lane_of |= {actor.id: lanes[-1] for actor in gate.members}
            gate.members = []
        self.on_rank: dict[int, list[_Lane]] = {}
        for lane in lanes:
            self.on_rank.setdefault(lane.rank, []).append(lane)
        self.machine = Machine(plan.cluster)
        whole = [lane.name for lane in lanes] + [link.name for link in self.machine.links]
        self.wires = Wires({name: Link(name=name, bandwidth_bytes_per_s=1.0) for name in whole}, sharing)
        self.now_s = 0.0
        self.ready_s: dict[ActorId, float] = {}
        self.stirred: dict[int, _Lane] = {lane.number: lane for lane in lanes}
        self.running: dict[str, _Running] = {}
        self.talks = dict.fromkeys(range(plan.num_ranks), 0)
        self.meetings: dict[tuple[str, tuple[int, ...], int], list[Actor]] = {}
        self.travelling: list[tuple[float, int, list[Message]]] = []
        self.sent = 0
        self.ledger = Ledger(plan, self.actors.values())
        self.acts: list[Entry] = []
        self.price_s = {actor.id: self._price(actor) for actor in self.actors.values()}
        self.peers = {actor.id: plan.peers(actor.task, actor.rank) for actor in self.actors.values()}
        self.needs: dict[tuple[str, tuple[int, ...]], tuple[Mapping[str, float], frozenset[int]]] = {}
        self.arrived: dict[ActorId, tuple[float, int]] = {}
        for actor in self.actors.values():
            self._note_ready(actor)

    def run(self) -> None:
        while True:
            self._settle()
            next_s = min(self.wires.next_end_s(), self.travelling[0][0] if self.travelling else math.inf)
            if next_s == math.inf:
                break
            self.now_s = next_s
            while min(self.wires.next_end_s(), self.travelling[0][0] if self.travelling else math.inf) <= next_s:
                for name, _ in self.wires.pop_ended(next_s):
                    self._end(self.running.pop(name))
                while self.travelling and self.travelling[0][0] <= next_s:
                    for message in heapq.heappop(self.travelling)[2]:
                        self._receive(message)
        if all(actor.done for actor in self.actors.values()):
            return
        if self.running or self.travelling:
            raise InvalidCluster("this simulation ends after more seconds than a float can hold; lower the prices of the cost model")
        if self.meetings:
            event = simpy.Environment().event()  # a Meeting of the engine holds one; here nobody waits for it
            stuck = [Meeting(task, n, group, event, [a.rank for a in there]) for (task, group, n), there in self.meetings.items()]
            raise DeadLock(explain_meetings(self.plan, self.actors, self.gates, stuck))
        raise DeadLock(explain_wait(self.plan, self.actors, self.gates))

    def _settle(self) -> None:
        """The instant is over: every stirred stream chooses, then speeds follow from who is under way."""
        stirred, self.stirred = self.stirred, {}
        complete: list[tuple[tuple[Actor, ...], int]] = []
        for number in sorted(stirred):
            lane = stirred[number]
            actor = lane.gate.choose()
            if actor is None:
                continue
            lane.gate.members.remove(actor)
            act = lane.gate.start(actor)
            self.arrived[actor.id] = self.ready_s.pop(actor.id), act
            self.ledger.begin(actor)
            group = self.peers[actor.id]
            if len(group) == 1:
                self._start((actor,), group, act)
                continue
            there = self.meetings.setdefault((actor.task.id, group, act), [])
            there.append(actor)
            if len(there) == len(group):
                complete.append((tuple(self.meetings.pop((actor.task.id, group, act))), act))
        for actors, act in complete:
            self._start(actors, self.peers[actors[0].id], act)
        self.wires.settle(self.now_s)

    def _start(self, actors: tuple[Actor, ...], ranks: tuple[int, ...], act: int) -> None:
        task, lane = actors[0].task, self.lane_of[actors[0].id]
        duration_s = max(felt_s(self.price_s[actor.id], self.factor, *actor.id, act) for actor in actors)
        if (task.id, ranks) not in self.needs:
            shares = link_shares(self.plan, task, ranks, duration_s, self.machine)
            self.needs[task.id, ranks] = shares, frozenset(rank for hop in hops(self.plan, task, ranks) for rank in hop[:2])
        shares, talking = self.needs[task.id, ranks]
        name = f"{task.id}@{ranks[0]}#{act}"
        self.running[name] = _Running(actors, act, self.now_s, talking)
        lane.computing = task.kind.is_compute
        self.wires.enter(name, {lane.name: 1.0, **shares}, duration_s, self.now_s)
        self._pace(lane)
        self._talk(talking, 1)

    def _talk(self, ranks: Iterable[int], more: int) -> None:
        for rank in ranks:
            self.talks[rank] += more
            for lane in self.on_rank.get(rank, ()):
                self._pace(lane)

    def _pace(self, lane: _Lane) -> None:
        self.wires.set_bandwidth(lane.name, 1 / self.slowdown if lane.computing and self.talks[lane.rank] else 1.0)

    def _end(self, run: _Running) -> None:
        self._talk(run.talking, -1)
        for actor in run.actors:
            lane = self.lane_of[actor.id]
            lane.gate.finish()
            lane.computing = False
            ready_s, number = self.arrived.pop(actor.id)
            act = Act(actor.task.id, actor.rank, number, ready_s, run.start_s, self.now_s)
            self.acts.append((run.start_s, self.now_s, self.place[actor.id], number, act))
            if self.on_act is not None:
                self.on_act(act)
            messages = actor.end()
            self.ledger.end(actor)
            self._send(actor.rank, messages)
            self._note_ready(actor)
            self.stirred[lane.number] = lane

    def _send(self, rank: int, messages: Iterable[Message]) -> None:
        remote: dict[int, list[Message]] = {}
        for message in messages:
            if message.receiver[1] == rank:
                self._receive(message)
            else:
                remote.setdefault(message.receiver[1], []).append(message)
        for target, bundle in remote.items():
            self.sent += 1
            latency_s = checked_s(self.cost.message_s(rank, target), f"a message from rank {rank} to rank {target}")
            heapq.heappush(self.travelling, (self.now_s + latency_s, self.sent, bundle))

    def _receive(self, message: Message) -> None:
        actor = self.actors[message.receiver]
        actor.receive(message)
        if message.kind is MessageKind.ACK:
            self.ledger.acknowledged(actor, message)
        self._note_ready(actor)

    def _note_ready(self, actor: Actor) -> None:
        if actor.busy or actor.id in self.ready_s or not actor.can_fire():
            return
        self.ready_s[actor.id] = self.now_s
        lane = self.lane_of[actor.id]
        lane.gate.members.append(actor)
        lane.gate.members.sort(key=lambda member: self.place[member.id])
        if lane.gate.running is None:
            self.stirred[lane.number] = lane

    def _price(self, actor: Actor) -> float:
        return checked_s(self.cost.act_s(self.plan, actor.task, actor.rank), f"an act of {actor.task.id} on rank {actor.rank}")


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
