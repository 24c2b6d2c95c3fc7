"""Boxing: the cheapest way from one NdSbp to another on the same mesh (SEMANTICS 2.1).

States are NdSbp, edges are steps along one mesh axis, the weight is the time of the step's collective; Dijkstra finds the path, and
hierarchical routes (inside the node first, then across) fall out of the link costs.

A step may change axis a only while a is the innermost axis on the dims it touches: with (S(0), S(0)) the pieces of axis 1 lie inside those of
axis 0, so axis 1 must be gathered before axis 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import lru_cache

from planner.ir.collective import Collective, collective_for
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing
from planner.ir.sbp import B, NdSbp, Partial, Sbp, Split
from planner.ir.tensor import TensorType

__all__ = ["boxing_path"]

_STEP_S = 1e-9  # makes a path with fewer steps win among equals


def _targets(shape: tuple[int, ...], src: NdSbp, dst: NdSbp) -> tuple[Sbp, ...]:
    """Entries worth trying: every split, B, and the partial ones that the destination asks for."""
    partial = dict.fromkeys(entry for entry in dst.entries if isinstance(entry, Partial))
    return (B, *(Split(dim) for dim in range(len(shape))), *partial)


def _innermost(state: NdSbp, axis: int, entry: Sbp) -> bool:
    return not isinstance(entry, Split) or all(
        not (isinstance(later, Split) and later.dim == entry.dim) for later in state.entries[axis + 1 :]
    )


def _steps(logical: TensorType, mesh: tuple[int, ...], state: NdSbp, targets: tuple[Sbp, ...]) -> Iterator[Boxing]:
    for axis, entry in enumerate(state.entries):
        if not _innermost(state, axis, entry):
            continue
        for target in targets:
            if target == entry or (isinstance(entry, Partial) and isinstance(target, Partial)):
                continue
            after = state.replace(axis, target)
            if _innermost(after, axis, target) and after.splits_evenly(logical.shape, mesh):
                yield Boxing(src=state, dst=after, axis=axis, collective=collective_for(entry, target))


@lru_cache(maxsize=65536)
def boxing_path(
    logical: TensorType, mesh: tuple[int, ...], src: NdSbp, dst: NdSbp, step_s: Callable[[Collective, float, int], float]
) -> tuple[tuple[Boxing, ...], float]:
    """Cheapest steps from ``src`` to ``dst`` and their time.

    Args:
        logical: the logical tensor.
        step_s: (collective, bytes that the axis' devices hold together, axis) -> seconds.

    Raises:
        Unsupported: no path exists (a partial reduction of another kind).
    """
    targets = _targets(logical.shape, src, dst)
    best: dict[NdSbp, float] = {src: 0.0}
    via: dict[NdSbp, Boxing] = {}
    queue: list[tuple[float, int, NdSbp]] = [(0.0, 0, src)]
    number = 0
    while queue:
        cost_s, _, state = heapq.heappop(queue)
        if state == dst:
            break
        if cost_s > best[state]:
            continue
        for step in _steps(logical, mesh, state, targets):
            together = logical.with_shape(state.replace(step.axis, B).local_shape(logical.shape, mesh)).size_bytes
            reached = cost_s + step_s(step.collective, together, step.axis) + _STEP_S
            if reached < best.get(step.dst, float("inf")):
                best[step.dst], via[step.dst] = reached, step
                number += 1
                heapq.heappush(queue, (reached, number, step.dst))
    if dst not in best:
        raise Unsupported(f"no boxing from {src} to {dst} for {logical} on mesh {mesh}: P can only be reduced by its own operation")
    path: list[Boxing] = []
    state = dst
    while state != src:
        path.append(via[state])
        state = via[state].src
    return tuple(reversed(path)), best[dst]
