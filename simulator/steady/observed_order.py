"""The order of one steady step on streams without an order of their own, read off a simulation; the marked graph uses it.

    acts of a stream:   ... | F0 B0 F1 B1 | F0 B0 F1 B1 | ...       one step's acts, each once, and then the same again one step later

A run has a fill and a drain, so the window is looked for in its middle, in longer and longer runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.ir.actors.actor import ActorId
from planner.ir.actors.routes import routes
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan, Task, TaskKind
from planner.ir.protocols import CostModel
from planner.ir.sbp import NdSbp
from planner.ir.traces.trace import Act
from simulator.compiled.arrays import CompiledPlan
from simulator.compiled.compiler import compile_plan
from simulator.compiled.event_kernel import play_events
from simulator.engine import simulate
from simulator.steady.arcs import counted

__all__ = ["Place", "is_ordered", "observed_orders", "representatives"]

Place = tuple[ActorId, int, int]
"""(actor, act k of the step, step) of an act on a stream."""

LENGTHS = (8, 16, 32)
"""Lengths, in steps, of the simulated runs that are searched for a repeating step."""
MOST_ACTS = 2_000_000
"""Runs are no longer than this: about half a minute of SimPy where the compiled engine cannot decide."""
FEW_ACTS = 500
"""SimPy performs so many in the time that the compiled kernel takes to be loaded from its cache [measured: 10 ms, 2026-11]."""

_Turn = tuple[str, int]
"""(task, number of the act, counted over all steps)."""


def is_ordered(plan: Plan) -> bool:
    """Whether every stream has an order, or only one task: then nothing is chosen while the Plan runs."""
    return all(stream.order or sum(task.stream == stream.id for task in plan.tasks) <= 1 for stream in plan.streams)


def observed_orders(
    plan: Plan, cost: CostModel, streams: Collection[str], *, folded: bool = False
) -> Mapping[tuple[str, int], tuple[Place, ...]]:
    """One steady step's acts on each of ``streams``, per rank, in the order in which the simulator performs them.

    Args:
        folded: one rank per placement, the first, stands for all.

    Raises:
        DeadLock: the plan is not live.
        Unsupported: the acts do not repeat step by step within 32 steps or MOST_ACTS acts; such a plan has no one order.
    """
    game, prices = (representatives(plan, cost)) if folded else (plan, cost)
    rank_of = {p.ranks[0]: plan.placement[p.id].ranks[0] for p in game.placements} if folded else {}
    acts_per_step = sum(task.acts * len(game.ranks_of(task)) for task in game.tasks)
    compiled: CompiledPlan | None = None
    tried = 0
    for steps in LENGTHS:
        if steps * acts_per_step > MOST_ACTS:
            break
        tried = steps
        lanes = None
        if steps * acts_per_step > FEW_ACTS:
            if compiled is None:
                compiled = compile_plan(game, prices, sizes=False)
            lanes = _played(compiled, streams, steps)
        if lanes is None:
            lanes = _simulated(game, prices, streams, steps)
        orders = {}
        for (stream, rank), acts in lanes.items():
            window = _window(game, acts, steps)
            if window is None:
                break
            real = rank_of.get(rank, rank)
            orders[stream, real] = tuple(
                ((task, real), number % game.task[task].acts, number // game.task[task].acts) for task, number in window
            )
        else:
            return orders
    raise Unsupported(
        f"streams {sorted(streams)[:4]} have no order of their own, and {tried} simulated steps ({acts_per_step} acts each) do not settle "
        f"into one that repeats every step; give the streams an order, or simulate more steps and read the period from the trace"
    )


def _simulated(plan: Plan, cost: CostModel, streams: Collection[str], steps: int) -> dict[tuple[str, int], Sequence[_Turn]]:
    """All acts on each of ``streams``, per rank, in the order in which SimPy ends them."""
    lanes: dict[tuple[str, int], list[_Turn]] = {}

    def note(act: Act) -> None:
        stream = plan.task[act.task].stream
        if stream in streams:
            lanes.setdefault((stream, act.rank), []).append((act.task, act.number))

    simulate(plan, cost, steps=steps, on_act=note)
    return dict(lanes)


def _played(compiled: CompiledPlan, streams: Collection[str], steps: int) -> dict[tuple[str, int], Sequence[_Turn]] | None:
    """The same from the arrays of the compiled engine.

    A lane performs one act at a time, so ends are in the order of the acts; where two ends are equal, the one that took time came first.
    None: two acts without any duration end together, or the plan is not live; then only SimPy tells the order, or the reason.
    """
    played = play_events(compiled.tables, steps, compiled.ranks.num_classes, full=False)
    if not played.complete:
        return None
    members: dict[tuple[str, int], list[int]] = {}
    for actor, (task, rank_class) in enumerate(compiled.actors):
        if task.stream in streams:
            members.setdefault((task.stream, rank_class), []).append(actor)
    lanes: dict[tuple[str, int], Sequence[_Turn]] = {}
    for (stream, rank_class), actors in members.items():
        total = steps * compiled.tables.acts[actors]
        row, number = counted(total)
        end_s = played.end_s[played.base[actors][row] + number]
        duration_s = compiled.tables.duration_s[actors][row]
        instant = (end_s + duration_s == end_s) | (end_s - duration_s == end_s)  # rounding calls too many instant rather than too few
        turns = np.lexsort((instant, end_s))
        same = (end_s[turns[1:]] == end_s[turns[:-1]]) & (instant[turns[1:]] == instant[turns[:-1]])
        if same.any():
            return None
        names = [compiled.actors[actor][0].id for actor in actors]
        acts = list(zip(map(names.__getitem__, row[turns].tolist()), number[turns].tolist(), strict=True))
        placement = compiled.plan.placement[compiled.plan.stream[stream].placement]
        for position in compiled.ranks.members[placement.id][rank_class]:
            lanes[stream, placement.ranks[position]] = acts
    return lanes


def _window(plan: Plan, acts: Sequence[_Turn], steps: int) -> list[_Turn] | None:
    """(task, number) of one step's worth of acts from the middle of the run, if the next step's worth is the same one step later."""
    size = len(acts) // steps
    start = (steps // 2) * size
    here = list(acts[start : start + size])
    then = [(task, number - plan.task[task].acts) for task, number in acts[start + size : start + 2 * size]]
    once = len({(task, number % plan.task[task].acts) for task, number in here}) == size
    return here if once and here == then else None


@dataclass(frozen=True, slots=True)
class _OfRepresentatives:
    """Prices for the Plan of representatives: an act costs what it costs the slowest rank, a message what it costs the slowest pair."""

    plan: Plan
    cost: CostModel
    talk: Mapping[tuple[int, int], frozenset[tuple[int, int]]]
    """(placement's place, placement's place) -> the pairs of ranks that send to each other, both ways."""

    @property
    def id(self) -> str:
        return self.cost.id

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        real = self.plan.task[task.id]
        return max(self.cost.act_s(self.plan, real, r) for r in self.plan.ranks_of(real))

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        pairs = self.talk.get((src_rank, dst_rank), frozenset())
        return max((self.cost.message_s(src, dst) for src, dst in pairs if src != dst), default=0.0)


def representatives(plan: Plan, cost: CostModel) -> tuple[Plan, CostModel]:
    """The Plan with one rank per placement, rank i for placement i, and its prices.

    Good for questions of order among equal ranks; bytes and collectives of the whole are not in it.
    """
    place = {p.id: i for i, p in enumerate(plan.placements)}
    talk: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for task in plan.tasks:
        if task.kind is TaskKind.TRANSFER:
            ends = place[task.placement], place[plan.regst[task.produces[0].regst].placement]
            for src, targets in routes(plan, task).items():
                for dst in targets:
                    talk.setdefault(ends, set()).add((src, dst))
                    talk.setdefault(ends[::-1], set()).add((dst, src))
    small = tuple(replace(p, ranks=(i,), mesh=(1,) * len(p.mesh)) for i, p in enumerate(plan.placements))
    nothing = {p.id: NdSbp.broadcast(len(p.mesh)) for p in plan.placements}
    regsts = tuple(replace(r, tensors=tuple(replace(t, sbp=nothing[r.placement]) for t in r.tensors)) for r in plan.regsts)
    folded = replace(plan, placements=small, regsts=regsts)
    return folded, _OfRepresentatives(plan, cost, {ends: frozenset(pairs) for ends, pairs in talk.items()})
