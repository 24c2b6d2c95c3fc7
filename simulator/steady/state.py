"""The steady state of a Plan: its period, proved, and the cycle that sets it (SEMANTICS 4.2).

    plan, cost  --marked_graph-->  acts and waits  --Howard-->  period, schedule, critical cycle

Numbers from here are of the kind ``theory``: they follow from the Plan and its prices without performing it.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.errors import DeadLock
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from simulator.steady.cycle_ratio import CycleRatio, max_cycle_ratio
from simulator.steady.cycle_text import describe_cycle
from simulator.steady.graph import ArcKind, MarkedGraph, marked_graph
from simulator.steady.liveness_proof import check_live, is_live

__all__ = ["SteadyState", "Wait", "steady_graph", "steady_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One arc of the critical cycle: after ``task``'s act comes the next wait's.

    time_s: duration and latency, seconds.   tokens: steps from this act to the next.   quota: of ``regst``, for waits for a free block.
    """

    task: str
    rank: int
    act: int
    why: ArcKind
    regst: str | None
    quota: int | None
    time_s: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteadyState:
    """period_s: seconds per training step when the fill of the first steps is over.

    cycle: the waits that set it: period_s = sum of time_s / sum of tokens.
    text: the cycle as one line of text.
    ratio: potentials and bounds that prove that no cycle is slower.
    graph: the marked graph; ``graph.chosen`` names the streams whose order is that of the simulated steady step.
    """

    period_s: float
    cycle: tuple[Wait, ...]
    text: str
    ratio: CycleRatio
    graph: MarkedGraph

    @property
    def about(self) -> str:
        """One line on what the period holds for."""
        graph = self.graph
        scope = "one rank per placement stands for all" if graph.folded else "every rank by itself"
        seen = f"; streams {', '.join(graph.chosen)} in the order of the simulated steady step" if graph.chosen else ""
        left_out = f"; {graph.left_out}" if graph.left_out else ""
        return f"theory: {graph.num_nodes} acts per step, {graph.num_arcs} waits, {scope}{seen}{left_out}"


def steady_state(plan: Plan, cost: CostModel, *, folded: bool | None = None) -> SteadyState:
    """Period and critical cycle of a live Plan, without simulating it where its streams have orders.

    Args:
        plan: a verified Plan.
        cost: seconds per act and message.
        folded: see marked_graph.

    Raises:
        DeadLock: see check_live.   Unsupported: see observed_orders.   InvalidCluster: a price that is negative or not finite.

    Source: SEMANTICS 4.2; simulator.steady.graph and simulator.steady.cycle_ratio.
    """
    check_live(plan)
    return steady_graph(marked_graph(plan, cost, folded=folded))


def steady_graph(graph: MarkedGraph) -> SteadyState:
    """The steady state of a given graph, for example one with other quotas (MarkedGraph.with_quotas).

    Raises:
        DeadLock: the graph has a cycle without tokens.
    """
    if not is_live(graph):
        raise DeadLock(
            "these quotas and stream orders are not live together (SEMANTICS 4.1); check_live names the cycle, or keep the quotas"
        )
    ratio = max_cycle_ratio(graph.num_nodes, graph.src, graph.dst, graph.weight_s, graph.tokens)
    return SteadyState(
        period_s=ratio.ratio_s,
        cycle=tuple(_wait(graph, arc) for arc in ratio.cycle),
        text=describe_cycle(graph, ratio.cycle),
        ratio=ratio,
        graph=graph,
    )


def _wait(graph: MarkedGraph, arc: int) -> Wait:
    node, regst = int(graph.src[arc]), graph.regst_of(arc)
    why = ArcKind(int(graph.kind[arc]))
    return Wait(
        task=graph.task_of(node).id,
        rank=int(graph.node_rank[node]),
        act=int(graph.node_act[node]),
        why=why,
        regst=None if regst is None else regst.id,
        quota=regst.quota if regst is not None and why is ArcKind.QUOTA else None,
        time_s=float(graph.weight_s[arc]),
        tokens=int(graph.tokens[arc]),
    )
