"""The cost of boxing one tensor type between any two layouts: the closure of single steps, computed at once for all pairs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.ir.collective import Collective, collective_for
from planner.ir.sbp import B, NdSbp, Partial, ReduceOp, Sbp, Split
from planner.ir.tensor import TensorType

__all__ = ["BoxingTable", "StepPrice", "innermost", "kinds_in", "with_sum"]

StepPrice = Callable[[Collective, float, int], float]
"""(collective, bytes that the axis' devices hold together, axis) -> seconds."""

STEP_S = 1e-9
"""Added per step, so that of two paths of equal cost the one with fewer steps is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Moves:
    """The layouts of a tensor on a mesh, and the single steps between them, which tensors that are cut alike have in common.

    src, dst: of each step, the numbers of its layouts.   price: of each step, the number of what it costs.
    priced: (collective, axis, into how many shares the axis' devices that communicate hold the tensor), each once.
    local[i, j]: layout j is layout i, or one step without communication away.
    """

    states: tuple[NdSbp, ...]
    index: Mapping[NdSbp, int]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    price: NDArray[np.int64]
    priced: tuple[tuple[Collective, int, int], ...]
    local: NDArray[np.bool_]


def _entries(ndim: int, partial: tuple[ReduceOp, ...]) -> tuple[Sbp, ...]:
    return (B, *(Split(d) for d in range(ndim)), *(Partial(op) for op in partial))


@lru_cache(maxsize=1024)
def _layouts(mesh: tuple[int, ...], ndim: int, partial: tuple[ReduceOp, ...]) -> tuple[NdSbp, ...]:
    """The layouts of tensors of so many dims, even or not."""
    entries = _entries(ndim, partial)
    return tuple(NdSbp(state) for state in product(*(entries if parts > 1 else (B,) for parts in mesh)))


@lru_cache(maxsize=4096)
def _moves(mesh: tuple[int, ...], ndim: int, partial: tuple[ReduceOp, ...], states: tuple[NdSbp, ...]) -> _Moves:
    entries = _entries(ndim, partial)
    index = {state: i for i, state in enumerate(states)}
    local = np.eye(len(states), dtype=np.bool_)
    steps: list[tuple[int, int, int]] = []
    priced: dict[tuple[Collective, int, int], int] = {}
    for i, state in enumerate(states):
        parts = prod(mesh[axis] for axis, entry in enumerate(state.entries) if isinstance(entry, Split))
        for axis, entry in enumerate(state.entries):
            if mesh[axis] == 1 or not innermost(state, axis, entry):
                continue
            share = parts // mesh[axis] if isinstance(entry, Split) else parts
            for target in entries:
                if target == entry or (isinstance(entry, Partial) and isinstance(target, Partial)):
                    continue
                after = state.replace(axis, target)
                j = index.get(after)
                if j is not None and innermost(after, axis, target):
                    collective = collective_for(entry, target)
                    steps.append((i, j, priced.setdefault((collective, axis, share), len(priced))))
                    local[i, j] |= collective is Collective.LOCAL
    src, dst, price = np.array(steps, dtype=np.int64).reshape(-1, 3).T
    return _Moves(states=states, index=index, src=src, dst=dst, price=price, priced=tuple(priced), local=local)


class BoxingTable:
    """price_s[i, j]: seconds of the cheapest path from layout i to layout j of one tensor type on one mesh.

    A step may change axis a only while a is the innermost axis on the dims it splits: with (S(0), S(0)) the parts of axis 1 lie inside those
    of axis 0, so axis 1 must be gathered before axis 0.

    Args:
        logical: the logical tensor.
        step_s: (collective, bytes that the axis' devices hold together, axis) -> seconds.
        partial: reductions that may occur.
    """

    def __init__(
        self,
        logical: TensorType,
        mesh: tuple[int, ...],
        step_s: StepPrice,
        partial: tuple[ReduceOp, ...] = (ReduceOp.SUM,),
    ) -> None:
        even = tuple(state for state in _layouts(mesh, logical.ndim, partial) if state.splits_evenly(logical.shape, mesh))
        moves = _moves(mesh, logical.ndim, partial, even)
        self.logical, self.mesh = logical, mesh
        self.states, self.index = moves.states, moves.index
        size, whole_bytes = len(self.states), logical.size_bytes
        step = np.full((size, size), np.inf)
        np.fill_diagonal(step, 0.0)
        price_s = np.array([step_s(collective, whole_bytes // share, axis) + STEP_S for collective, axis, share in moves.priced])
        step[moves.src, moves.dst] = price_s[moves.price]
        self._step = step
        self._local = moves.local
        self.price_s = _closure(step)

    @cached_property
    def is_local(self) -> NDArray[np.bool_]:
        """is_local[i, j]: layout i becomes layout j without communication."""
        reach = self._local.copy()
        for k in range(len(reach)):
            reach |= reach[:, k, None] & reach[None, k, :]
        return reach

    def path(self, src: NdSbp, dst: NdSbp) -> tuple[NdSbp, ...] | None:
        """Layouts from ``src`` to ``dst`` along a cheapest path, both included; None if there is none."""
        i, j = self.index[src], self.index[dst]
        if not np.isfinite(self.price_s[i, j]):
            return None
        states = [src]
        while i != j:
            # The first step of a cheapest path: its cost and the cost from there on add up to the whole, but for rounding.
            through = self._step[i] + self.price_s[:, j]
            through[i] = np.inf
            i = int(np.argmin(through))
            states.append(self.states[i])
        return tuple(states)


def kinds_in(layouts: Iterable[NdSbp]) -> tuple[ReduceOp, ...]:
    """The reductions that occur in some layouts, and always the sum."""
    return with_sum({entry.op for sbp in layouts for entry in sbp.entries if isinstance(entry, Partial)})


def with_sum(kinds: Collection[ReduceOp]) -> tuple[ReduceOp, ...]:
    """These reductions and the sum, in the order in which tables have them."""
    return tuple([op for op in ReduceOp if op is ReduceOp.SUM or op in kinds])


def innermost(state: NdSbp, axis: int, entry: Sbp) -> bool:
    """Whether no later axis splits the dim that ``axis`` splits."""
    return not isinstance(entry, Split) or all(
        not (isinstance(later, Split) and later.dim == entry.dim) for later in state.entries[axis + 1 :]
    )


def _closure(step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shortest paths (Floyd and Warshall)."""
    best = step.copy()
    for k in range(len(best)):
        np.minimum(best, best[:, k, None] + best[None, k, :], out=best)
    return best
