"""How many times as long ops and exchanges of experts take under a load, at its quantile: the objective of a search that is robust against skew.

(1) op         load of the busiest rank over even, at the quantile, of the ranks that the strategy cuts experts over             -> op_times
(2) exchange   bytes as many times, of all-to-alls of tokens whose type is that of tokens on their way                          -> exchange_times

Neither is below 1, even where a capacity drops so much that the busiest rank has less than the even load: so bounds that know nothing of a routing
stay bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from planner.cost.routing import ExpertLoad
from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.tensor import TensorType
from planner.search.strategies import Strategy
from planner.stages.experts import ExpertOp, ExpertOps, expert_axes, expert_ops

__all__ = ["exchange_times", "experts_of", "op_times"]


def experts_of(graph: LogicalGraph, load: ExpertLoad) -> ExpertOps:
    """The work of experts in a graph.

    Raises:
        Unsupported: there is none, more experts than tokens, or a routing that does not fit them.
    """
    found = expert_ops(graph)
    if not found.ops:
        raise Unsupported(
            f"{load}, for a model without layers of experts (parameters of three dims that a batched product reads along the first); leave it out"
        )
    for work in dict.fromkeys(found.ops.values()):
        if work.experts * work.rows < work.experts * load.top_k:
            raise Unsupported(
                f"{work.experts} experts with {work.rows} places each, top {load.top_k}: there are fewer tokens than experts; take larger micro-batches"
            )
        load.busiest(work.experts, load.tokens(work.experts, work.rows), 1)
    return found


def op_times(work: ExpertOp, strategy: Strategy, mesh: tuple[int, ...], load: ExpertLoad) -> float:
    """(1)."""
    axes, row_axes = expert_axes(work, strategy.inputs)
    rows = work.rows // prod(mesh[axis] for axis in row_axes)
    return max(1.0, load.busiest(work.experts, load.tokens(work.experts, rows), prod(mesh[axis] for axis in axes)))


def exchange_times(
    graph: LogicalGraph, found: ExpertOps, mesh: tuple[int, ...], load: ExpertLoad
) -> Mapping[TensorType, tuple[float, ...]]:
    """(2): type -> per mesh axis; 1 along an axis that has more devices than there are experts."""

    def times(work: ExpertOp, parts: int) -> float:
        tokens = load.tokens(work.experts, work.rows * parts // prod(mesh))
        return max(1.0, load.busiest(work.experts, tokens, parts)) if 1 < parts <= work.experts else 1.0

    return {graph.values[value]: tuple(times(work, parts) for parts in mesh) for value, work in found.travelling.items()}
