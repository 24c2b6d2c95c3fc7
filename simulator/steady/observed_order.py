"""The order of one steady step on streams without an order of their own, read off a simulation; the marked graph uses it.

    acts of a stream:   ... | F0 B0 F1 B1 | F0 B0 F1 B1 | ...       one step's acts, each once, and then the same again one step later

A run begins and ends with steps that are not like the others, so one step of its middle is compared with the next; if they differ, a longer
run is simulated.
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
from simulator.engine import Engine, simulate
from simulator.rules.prices import CheckedPrices
from simulator.steady.arcs import counted

__all__ = ["Place", "is_ordered", "observed_orders", "representatives"]

Place = tuple[ActorId, int, int]
"""(actor, act k of the step, step) of an act on a stream."""

LENGTHS = (8, 16, 32)
"""Lengths, in steps, of the simulated runs that are searched for a repeating step."""
MOST_ACTS = 2_000_000
"""No run has more acts; SimPy, which decides where the compiled engine cannot, performs so many in about half a minute."""
FEW_ACTS = 500
"""SimPy performs so many acts while the compiled kernel is loaded from its cache [measured: 10 ms, 2026-11]."""

_NumberedAct = tuple[str, int]
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
    simulated_plan, prices = representatives(plan, cost) if folded else (plan, cost)
    rank_of = {p.ranks[0]: plan.placement[p.id].ranks[0] for p in simulated_plan.placements} if folded else {}
    acts_per_step = sum(task.acts * len(simulated_plan.ranks_of(task)) for task in simulated_plan.tasks)
    compiled: CompiledPlan | None = None
    tried = 0
    for steps in LENGTHS:
        if steps * acts_per_step > MOST_ACTS:
            break
        tried = steps
        acts_of_streams = None
        if steps * acts_per_step > FEW_ACTS:
            if compiled is None:
                compiled = compile_plan(simulated_plan, prices, sizes=False)
            acts_of_streams = _played(compiled, streams, steps)
        if acts_of_streams is None:
            acts_of_streams = _simulated(simulated_plan, prices, streams, steps)
        orders = {}
        for (stream, rank), acts in acts_of_streams.items():
            step_acts = _repeated_step(simulated_plan, acts, steps)
            if step_acts is None:
                break
            real = rank_of.get(rank, rank)
            orders[stream, real] = tuple(
                ((task, real), number % simulated_plan.task[task].acts, number // simulated_plan.task[task].acts)
                for task, number in step_acts
            )
        else:
            return orders
    raise Unsupported(
        f"streams {sorted(streams)[:4]} have no order of their own, and {tried} simulated steps ({acts_per_step} acts each) do not settle "
        f"into one that repeats every step; give the streams an order, or simulate more steps and read the period from the trace"
    )


def _simulated(plan: Plan, cost: CostModel, streams: Collection[str], steps: int) -> dict[tuple[str, int], Sequence[_NumberedAct]]:
    """All acts on each of ``streams``, per rank, in the order in which SimPy ends them."""
    acts_of_streams: dict[tuple[str, int], list[_NumberedAct]] = {}

    def write_down(act: Act) -> None:
        stream = plan.task[act.task].stream
        if stream in streams:
            acts_of_streams.setdefault((stream, act.rank), []).append((act.task, act.number))

    simulate(plan, cost, steps=steps, on_act=write_down, engine=Engine.SIMPY)
    return dict(acts_of_streams)


def _played(compiled: CompiledPlan, streams: Collection[str], steps: int) -> dict[tuple[str, int], Sequence[_NumberedAct]] | None:
    """The same from the arrays of the compiled engine.

    A stream of a rank performs one act at a time, so its acts end in the order in which they begin; of two that end together, the one that took
    time came first.
    None: two acts without any duration end together, or the Plan is not live; SimPy then gives the order, or the reason.
    """
    events = play_events(compiled.tables, steps, compiled.ranks.num_classes, full=False)
    if not events.complete:
        return None
    members: dict[tuple[str, int], list[int]] = {}
    for actor, (task, rank_class) in enumerate(compiled.actors):
        if task.stream in streams:
            members.setdefault((task.stream, rank_class), []).append(actor)
    acts_of_streams: dict[tuple[str, int], Sequence[_NumberedAct]] = {}
    for (stream, rank_class), actors in members.items():
        total = steps * compiled.tables.acts[actors]
        row, number = counted(total)
        end_s = events.end_s[events.base[actors][row] + number]
        duration_s = compiled.tables.duration_s[actors][row]
        instant = (end_s + duration_s == end_s) | (end_s - duration_s == end_s)  # rounding errs towards instant
        in_order = np.lexsort((instant, end_s))
        are_equal = (end_s[in_order[1:]] == end_s[in_order[:-1]]) & (instant[in_order[1:]] == instant[in_order[:-1]])
        if are_equal.any():
            return None
        names = [compiled.actors[actor][0].id for actor in actors]
        acts = list(zip(map(names.__getitem__, row[in_order].tolist()), number[in_order].tolist(), strict=True))
        placement = compiled.plan.placement[compiled.plan.stream[stream].placement]
        for position in compiled.ranks.members[placement.id][rank_class]:
            acts_of_streams[stream, placement.ranks[position]] = acts
    return acts_of_streams


def _repeated_step(plan: Plan, acts: Sequence[_NumberedAct], steps: int) -> list[_NumberedAct] | None:
    """The acts of one step from the middle of the run, if those of the next step are the same one step later; else None."""
    size = len(acts) // steps
    start = (steps // 2) * size
    acts_here = list(acts[start : start + size])
    acts_after = [(task, number - plan.task[task].acts) for task, number in acts[start + size : start + 2 * size]]
    each_once = len({(task, number % plan.task[task].acts) for task, number in acts_here}) == size
    return acts_here if each_once and acts_here == acts_after else None


@dataclass(frozen=True, slots=True)
class _OfRepresentatives:
    """Prices of the Plan of representatives: those of an act on the slowest rank, and of a message between the slowest pair of ranks."""

    plan: Plan
    prices: CheckedPrices
    sending_pairs: Mapping[tuple[int, int], frozenset[tuple[int, int]]]
    """(place of one placement in the Plan, place of another) -> the (sending, receiving) ranks between them."""

    @property
    def id(self) -> str:
        return self.prices.cost.id

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        real = self.plan.task[task.id]
        return self.prices.meeting_s(real, self.plan.ranks_of(real))

    def equal_on_ranks(self, plan: Plan, task: Task) -> bool:
        """Each task has one rank."""
        return True

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        pairs = self.sending_pairs.get((src_rank, dst_rank), frozenset())
        return max((self.prices.message_s(src, dst) for src, dst in pairs), default=0.0)


def representatives(plan: Plan, cost: CostModel) -> tuple[Plan, CostModel]:
    """The Plan with one rank per placement, rank i for placement i, and its prices.

    It answers in which order equal ranks perform their acts; it has neither the bytes nor the collectives of the whole Plan.
    """
    place = {p.id: i for i, p in enumerate(plan.placements)}
    sending_pairs: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for task in plan.tasks:
        if task.kind is TaskKind.TRANSFER:
            ends = place[task.placement], place[plan.regst[task.produces[0].regst].placement]
            for src, targets in routes(plan, task).items():
                for dst in targets:
                    sending_pairs.setdefault(ends, set()).add((src, dst))
                    sending_pairs.setdefault(ends[::-1], set()).add((dst, src))
    small = tuple(replace(p, ranks=(i,), mesh=(1,) * len(p.mesh)) for i, p in enumerate(plan.placements))
    nothing = {p.id: NdSbp.broadcast(len(p.mesh)) for p in plan.placements}
    regsts = tuple(replace(r, tensors=tuple(replace(t, sbp=nothing[r.placement]) for t in r.tensors)) for r in plan.regsts)
    folded = replace(plan, placements=small, regsts=regsts)
    return folded, _OfRepresentatives(plan, CheckedPrices(plan, cost), {ends: frozenset(pairs) for ends, pairs in sending_pairs.items()})
