"""Boxing: the cheapest way from one NdSbp to another on the same mesh (SEMANTICS 2.1).

It is a shortest path: nodes are NdSbp, edges are steps along one mesh axis, and weights are the times of the steps' collectives.
Hierarchical routes (inside the node first, then across) follow from the links' costs.
"""

from __future__ import annotations

from functools import lru_cache

from planner.boxing.table import BoxingTable, StepPrice, kinds_in, with_sum
from planner.ir.collective import collective_for
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp, ReduceOp
from planner.ir.tensor import TensorType

__all__ = ["BoxingTable", "StepPrice", "boxing_path", "kinds_in", "steps_between", "with_sum"]


def boxing_path(logical: TensorType, mesh: tuple[int, ...], src: NdSbp, dst: NdSbp, step_s: StepPrice) -> tuple[tuple[Boxing, ...], float]:
    """Cheapest steps from ``src`` to ``dst`` and their time.

    Args:
        logical: the logical tensor.
        step_s: (collective, bytes that the axis' devices hold together, axis) -> seconds.

    Raises:
        Unsupported: no path exists (a partial reduction of another kind).
    """
    table = _table(logical, mesh, step_s, kinds_in((src, dst)))
    return steps_between(table, src, dst), float(table.price_s[table.index[src], table.index[dst]])


@lru_cache(maxsize=1024)
def _table(logical: TensorType, mesh: tuple[int, ...], step_s: StepPrice, kinds: tuple[ReduceOp, ...]) -> BoxingTable:
    return BoxingTable(logical, mesh, step_s, kinds)


def steps_between(table: BoxingTable, src: NdSbp, dst: NdSbp) -> tuple[Boxing, ...]:
    """The steps of a cheapest path.

    Raises:
        Unsupported: no path exists.
    """
    states = table.path(src, dst)
    if states is None:
        raise Unsupported(
            f"no boxing from {src} to {dst} for {table.logical} on mesh {table.mesh}: P can only be reduced by its own operation"
        )
    steps = []
    for here, there in zip(states, states[1:], strict=False):
        (axis,) = (a for a in range(len(here)) if here[a] != there[a])
        steps.append(Boxing(src=here, dst=there, axis=axis, collective=collective_for(here[axis], there[axis])))
    return tuple(steps)
