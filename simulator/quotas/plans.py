"""From a Plan to a QuotaProblem and back: which Regsts have a quota to choose, and on which device their blocks lie.

    marked_graph(plan, cost)   data, state, stream and task arcs   -> fixed arcs
                               quota arcs of data Regsts           -> rings of a Buffer
    state                      one block by law                    -> fixed bytes of its devices, as the largest workspaces are

A Plan's compute streams choose while they run, so the problem holds for *one* order per stream.  Where an order found by simulation at
generous quotas is worth more than what the stream would choose at the small ones, ordered() writes it into the Plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.ir.actors.verify import stream_workspaces
from planner.ir.plan import Plan, RegstKind
from simulator.quotas.problem import Buffer, Ints, QuotaProblem, Ring
from simulator.steady.graph import ArcKind, MarkedGraph

__all__ = ["PlanProblem", "ordered", "plan_problem", "register_bytes"]

MOST_STEPS = 4
"""Upper bound of a quota, in steps' worth of blocks; more blocks than one step uses rarely help, as acts wait for the update of the parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanProblem:
    """problem, whose Buffer number i is the Regst names[i] of graph.plan; its orders are those of the graph."""

    graph: MarkedGraph
    problem: QuotaProblem
    names: tuple[str, ...]

    def quotas(self, sizes: Ints) -> dict[str, int]:
        return {name: int(q) for name, q in zip(self.names, sizes, strict=True)}

    def of_plan(self, plan: Plan) -> Ints:
        """The quotas that a Plan with the same Regsts has."""
        return np.array([plan.regst[name].quota for name in self.names], dtype=np.int64)


def plan_problem(graph: MarkedGraph) -> PlanProblem:
    """The quotas of a Plan as a problem, for the stream orders that the graph has."""
    plan = graph.plan
    names = tuple(r.id for r in plan.regsts if r.kind is not RegstKind.STATE and r.producer is not None)
    place_of = {r.id: i for i, r in enumerate(plan.regsts)}
    free = np.isin(graph.regst, [place_of[name] for name in names]) & (graph.kind == ArcKind.QUOTA)
    device = _devices(plan)
    rings: dict[str, list[Ring]] = {name: [] for name in names}
    arcs = np.flatnonzero(free)
    begins = np.flatnonzero(graph.block[arcs] == 0)
    for run in np.split(arcs, begins[1:]) if len(arcs) else ():
        regst = plan.regsts[int(graph.regst[run[0]])]
        assert regst.producer is not None
        per_block = next(p.acts_per_block for p in plan.task[regst.producer].produces if p.regst == regst.id)
        producers = int(graph.into[run[0]]) + np.arange(len(run)) * per_block
        rings[regst.id].append(Ring(tuple(producers.tolist()), tuple(graph.src[run].tolist()), float(graph.weight_s[run[0]])))
    buffers = []
    for name in names:
        regst = plan.regst[name]
        ranks = plan.placement[regst.placement].ranks
        blocks = max((len(ring.producers) for ring in rings[name]), default=1)
        buffers.append(
            Buffer(
                name=name,
                block_bytes=plan.block_bytes(regst),
                upper=max(regst.quota, MOST_STEPS * blocks),
                rings=tuple(rings[name]),
                copies=len(ranks),
                places=tuple(sorted(d for d, rank in device.items() if rank in ranks)),
            )
        )
    problem = QuotaProblem(
        num_nodes=graph.num_nodes,
        tail=graph.src[~free],
        head=graph.dst[~free],
        tokens=graph.tokens[~free],
        weight_s=graph.weight_s[~free],
        buffers=tuple(buffers),
        fixed_bytes=_fixed_bytes(plan, device),
    )
    return PlanProblem(graph, problem, names)


def _devices(plan: Plan) -> dict[str, int]:
    """One rank for each set of placements that ranks belong to, by a name for messages."""
    seen: dict[tuple[str, ...], int] = {}
    for rank in range(plan.num_ranks):
        seen.setdefault(tuple(p.id for p in plan.placements if rank in p.ranks), rank)
    return {f"rank {rank}": rank for rank in seen.values()}


def _fixed_bytes(plan: Plan, device: Mapping[str, int]) -> dict[str, int]:
    """State and the largest workspace of each stream, as planner.ir.actors.verify.device_bytes counts them."""
    held = dict.fromkeys(device, 0)
    for name, rank in device.items():
        state = sum(
            r.quota * plan.block_bytes(r)
            for r in plan.regsts
            if (r.kind is RegstKind.STATE or r.producer is None) and rank in plan.placement[r.placement].ranks
        )
        held[name] = sum(stream_workspaces(plan, rank).values()) + state
    return held


def register_bytes(plan: Plan) -> int:
    """Bytes of all blocks of all Regsts that are not state, on all devices together."""
    return sum(
        r.quota * plan.block_bytes(r) * len(plan.placement[r.placement].ranks)
        for r in plan.regsts
        if r.kind is not RegstKind.STATE and r.producer is not None
    )


def ordered(graph: MarkedGraph) -> Plan:
    """The Plan with the observed orders written into its streams, where one step's acts are a sequence of their own.

    A stream whose observed order begins an act of the next step before one of this step keeps choosing: a sequence that is repeated step by
    step cannot say that without a first step of its own.
    """
    plan = graph.plan
    chains: dict[str, list[int]] = {}
    tokens: dict[str, int] = {}
    after: dict[int, tuple[int, int]] = {}
    for arc in np.flatnonzero(graph.kind == ArcKind.CHOICE).tolist():
        after[int(graph.src[arc])] = int(graph.dst[arc]), int(graph.tokens[arc])
    done: set[str] = set()
    for start in sorted(after):
        stream = graph.task_of(start).stream
        if stream in done:
            continue
        done.add(stream)
        chain, at = [], start
        while True:
            chain.append(at)
            at, token = after[at]
            tokens[stream] = tokens.get(stream, 0) + abs(token)
            if token:
                begin = len(chain)
            if at == start:
                break
        chains[stream] = chain[begin:] + chain[:begin]
    orders = {s: tuple(graph.task_of(n).id for n in chain) for s, chain in chains.items() if tokens[s] == 1}
    return replace(plan, streams=tuple(replace(s, order=orders.get(s.id, s.order)) for s in plan.streams))
