"""Sets of layouts: of a node's value, one layout per strategy, or those that a reader needs.

Equal sets are one object, so that results for a set (boxing matrices, bytes) are looked up by the object, without a comparison of layouts.
The layers of a model repeat, so there are few sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.boxing import BoxingTable
from planner.ir.sbp import NdSbp, Partial, ReduceOp, Split
from planner.ir.tensor import TensorType
from planner.search.strategies import StrategySet
from planner.search.zero import most_split, num_splits
from planner.solve.problem import Floats, Ints

__all__ = ["LayoutSet", "LayoutSets"]

_TIE_S = 1e-8


@dataclass(frozen=True, eq=False)  # no slots: what is found is kept
class LayoutSet:
    """Layouts, one per strategy and in the strategies' order; a layout may occur several times.  Sets are compared by identity."""

    layouts: tuple[NdSbp, ...]

    @cached_property
    def reductions(self) -> frozenset[ReduceOp]:
        """Those of the partial values among the layouts."""
        return frozenset(entry.op for sbp in set(self.layouts) for entry in sbp.entries if isinstance(entry, Partial))

    def places_in(self, table: BoxingTable) -> Ints:
        """The number of each layout in a table, looked up once."""
        if table not in self._places:
            self._places[table] = np.array([table.index[sbp] for sbp in self.layouts])
        return self._places[table]

    @cached_property
    def _places(self) -> dict[BoxingTable, Ints]:
        return {}

    def __len__(self) -> int:
        return len(self.layouts)


class LayoutSets:
    """Every layout set of one problem, each made once."""

    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.mesh = mesh
        self._operands: dict[tuple[StrategySet, int], LayoutSet] = {}
        self._results: dict[tuple[StrategySet, int], LayoutSet] = {}
        self._storable: dict[tuple[TensorType, bool], tuple[LayoutSet, Floats]] = {}
        self._unions: dict[tuple[LayoutSet, ...], LayoutSet] = {}
        self._repeated: dict[tuple[LayoutSet, int], LayoutSet] = {}
        self._reduced: dict[LayoutSet, LayoutSet] = {}

    def operand(self, strategies: StrategySet, place: int) -> LayoutSet:
        """The layout of the operand at that place, per strategy."""
        key = (strategies, place)
        if key not in self._operands:
            self._operands[key] = LayoutSet(tuple(s.inputs[place] for s in strategies.strategies))
        return self._operands[key]

    def result(self, strategies: StrategySet, place: int) -> LayoutSet:
        """The layout of the result at that place, per strategy."""
        key = (strategies, place)
        if key not in self._results:
            self._results[key] = LayoutSet(tuple(s.outputs[place] for s in strategies.strategies))
        return self._results[key]

    def storable(self, tensor: TensorType, *, only_most_split: bool) -> tuple[LayoutSet, Floats]:
        """Layouts in which a state may be stored, and per layout a cost that only breaks ties: whole before split.

        Args:
            only_most_split: only layouts that split along as many mesh axes as any layout of the tensor.
        """
        key = (tensor, only_most_split)
        if key not in self._storable:
            layouts = _without_partial(tensor, self.mesh)
            if only_most_split:
                layouts = tuple(sbp for sbp, most in zip(layouts, most_split(layouts), strict=True) if most)
            self._storable[key] = LayoutSet(layouts), np.array([_TIE_S * num_splits(sbp) for sbp in layouts])
        return self._storable[key]

    def union(self, parts: tuple[LayoutSet, ...]) -> LayoutSet:
        """Every layout of the parts, once."""
        if parts not in self._unions:
            self._unions[parts] = LayoutSet(tuple(dict.fromkeys(sbp for part in parts for sbp in part.layouts)))
        return self._unions[parts]

    def repeated(self, layouts: LayoutSet, times: int) -> LayoutSet:
        """The layouts repeated ``times`` times, once per delivery mode."""
        if times == 1:
            return layouts
        key = (layouts, times)
        if key not in self._repeated:
            self._repeated[key] = LayoutSet(layouts.layouts * times)
        return self._repeated[key]

    def reduced(self, layouts: LayoutSet, tensor: TensorType) -> LayoutSet:
        """The layouts in which as little of the tensor is held as can be: partial ones reduced into a split."""
        if layouts not in self._reduced:
            smallest = self.storable(tensor, only_most_split=True)[0].layouts[0]
            self._reduced[layouts] = LayoutSet(tuple(smallest if sbp.has_partial else sbp for sbp in layouts.layouts))
        return self._reduced[layouts]


def _without_partial(tensor: TensorType, mesh: tuple[int, ...]) -> tuple[NdSbp, ...]:
    """Layouts without partial values, whole first."""
    layouts: list[NdSbp] = [NdSbp(())]
    for axis in range(len(mesh)):
        entries = [NdSbp.broadcast(1).entries[0]]
        if mesh[axis] > 1:
            entries += [Split(d) for d in range(tensor.ndim)]
        layouts = [NdSbp((*sbp.entries, entry)) for sbp in layouts for entry in entries]
    return tuple(sbp for sbp in layouts if sbp.splits_evenly(tensor.shape, mesh))
