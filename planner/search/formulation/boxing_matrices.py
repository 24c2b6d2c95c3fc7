"""Matrices of the edges: seconds per step from each layout of a producer to each layout that a reader needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.boxing import with_sum
from planner.ir.tensor import TensorType
from planner.search.formulation.layout_sets import LayoutSet
from planner.search.formulation.mesh_tools import MeshTools
from planner.search.zero import DeliveryMode
from planner.solve.problem import Floats

__all__ = ["BoxingMatrices", "Source"]

_BOXING, _REGATHERING = "boxing", "regathering"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The origin of a value: a node, and the layout of the value under each of the node's strategies.

    count: how often per step the value is made.   bucketed: it travels in a bucket with others, so no latency is added for it.
    """

    node: int
    layouts: LayoutSet
    stage: int
    count: int
    bucketed: bool


_Key = tuple[object, ...]


class BoxingMatrices:
    """Matrices of a problem, each computed once.

    known: by all that they depend on beside the prices (``again``).
    """

    def __init__(self, tools: MeshTools) -> None:
        self._costs, self._once = tools.costs, tools.boxing_once_s
        self.known: dict[_Key, Floats] = {}

    def again(self, key: Any) -> Floats:
        """The matrix that has this key in another ``known``, of a cluster of equal devices, at the prices here."""
        kind, source, needs, logical, count, bucketed, on_same_stage, _, modes, more = key
        stands_for = Source(-1, source, 0, count, bucketed)
        if kind is _REGATHERING:
            return self.regathering(stands_for, needs, logical, modes, more)
        return self.boxing(stands_for, needs, logical, stage=0 if on_same_stage else 1, modes=modes, only_local=more)

    def boxing(
        self,
        source: Source,
        needs: LayoutSet,
        logical: TensorType,
        *,
        stage: int,
        modes: tuple[DeliveryMode, ...] = (DeliveryMode.ANY,),
        only_local: tuple[bool, ...] = (False,),
    ) -> Floats:
        """Seconds per step (shape: source's layouts x layouts needed); infinite where it is forbidden.

        Args:
            stage: of the reader.
            modes: the modes of delivery; each has an equal share of ``needs``.  A regathered value costs nothing here (-> regathering).
            only_local: for each equal share of the source's layouts, whether only boxing without communication is allowed.
        """
        on_same_stage, where = source.stage == stage, self._where(source.stage, stage)
        key = (_BOXING, source.layouts, needs, logical, source.count, source.bucketed, on_same_stage, where, modes, only_local)
        matrix = self.known.get(key)
        if matrix is None:
            matrix = self.known[key] = source.count * self._once_s(source, needs, logical, stage)
            share = len(needs) // len(modes)
            table = self._costs.boxing_table(logical, source.bucketed, with_sum(source.layouts.reductions | needs.reductions))
            rows, columns = source.layouts.places_in(table), needs.places_in(table)
            same = (rows[:, None] == columns[None, :share]) & on_same_stage
            for number, mode in enumerate(modes):
                part = matrix[:, number * share : (number + 1) * share]
                if mode is not DeliveryMode.ANY:
                    part[~same if mode is DeliveryMode.IN_PLACE else same] = np.inf
                if mode is DeliveryMode.REGATHERED:
                    part[np.isfinite(part)] = 0.0
            if any(only_local):
                is_restricted = np.repeat(only_local, len(source.layouts) // len(only_local))
                matrix[is_restricted[:, None] & ~table.is_local[np.ix_(rows, columns)]] = np.inf
        return matrix

    def regathering(self, source: Source, needs: LayoutSet, logical: TensorType, modes: tuple[DeliveryMode, ...], times: int) -> Floats:
        """Seconds per step of a value that is regathered ``times`` times per step; the other modes cost nothing here."""
        where = self._where(source.stage, source.stage)
        key = (_REGATHERING, source.layouts, needs, logical, source.count, source.bucketed, True, where, modes, times)
        if key not in self.known:
            matrix = np.zeros((len(source.layouts), len(needs)))
            share = len(needs) // len(modes)
            first = modes.index(DeliveryMode.REGATHERED) * share
            once_s = self._worked_out(source, LayoutSet(needs.layouts[:share]), logical, source.stage)
            matrix[:, first : first + share] = times * np.where(np.isfinite(once_s), once_s, 0.0)
            self.known[key] = matrix
        return self.known[key]

    def _where(self, src_stage: int, dst_stage: int) -> tuple[int, ...]:
        """What of the two stages makes a difference to prices; among equal devices it is only whether they are one."""
        if not self._costs.cluster.parts:
            return ()
        return (self._costs.part_at(dst_stage),) if src_stage == dst_stage else (src_stage, dst_stage)

    def _once_s(self, source: Source, needs: LayoutSet, logical: TensorType, stage: int) -> Floats:
        """Seconds from each of the source's layouts to each of those needed on a stage, once; no problem changes them."""
        key = (source.layouts, needs, logical, source.bucketed, source.stage == stage, self._where(source.stage, stage))
        if key not in self._once:
            self._once[key] = self._worked_out(source, needs, logical, stage)
        return self._once[key]

    def _worked_out(self, source: Source, needs: LayoutSet, logical: TensorType, stage: int) -> Floats:
        if source.stage == stage:
            table = self._costs.at(stage).boxing_table(logical, source.bucketed, with_sum(source.layouts.reductions | needs.reductions))
            return table.price_s[np.ix_(source.layouts.places_in(table), needs.places_in(table))]
        distinct = {(src, dst) for src in source.layouts.layouts for dst in needs.layouts}
        stages = (source.stage, stage)
        pair_s = {pair: self._costs.transfer_s(logical, *pair, bucketed=source.bucketed, stages=stages) for pair in distinct}
        return np.array([[pair_s[src, dst] for dst in needs.layouts] for src in source.layouts.layouts])
