"""Costs of layouts on one mesh: seconds of ops and of boxing, each computed once.

A boxing ends one act and begins another, so their overheads are added to its cost.  Values that are made once per step (gradients, parameters)
travel in buckets with others, so no latency and no overhead is added for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from planner.boxing import BoxingTable, kinds_in, steps_between
from planner.cost import axis_boxing_s, counted_work_s
from planner.cost import transfer_s as link_transfer_s
from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.plan import Boxing
from planner.ir.sbp import B, NdSbp, Partial, ReduceOp
from planner.ir.tensor import TensorType
from planner.search.strategies import OpPart, Ring, Strategy, StrategySet
from planner.solve.problem import Floats

__all__ = ["LayoutCosts", "PartsS"]

PartsS = dict[OpPart, float]
NONE_EXCHANGED: Mapping[TensorType, tuple[float, ...]] = {}


class LayoutCosts:
    """Seconds of one act on the mesh of one stage.

    In a cluster of several kinds of node each stage has costs of its own (at, part_at); what is not asked of these is the same for all.

    Args:
        ops_s: what ``ops_s`` gave on another cluster of this mesh and device; it grows.
        parts_s: seconds of parts of ops on this device; likewise, for all meshes.
        exchanged: type -> along each axis, times the bytes that its all-to-alls move (planner.search.routed).
    """

    def __init__(
        self,
        cluster: Cluster,
        mesh: tuple[int, ...],
        ops_s: dict[StrategySet, Floats] | None = None,
        exchanged: Mapping[TensorType, tuple[float, ...]] = NONE_EXCHANGED,
        parts_s: PartsS | None = None,
    ) -> None:
        self.cluster, self.mesh, self._exchanged = cluster, mesh, exchanged
        size = prod(mesh)
        first = tuple(range(size))
        self._next_stage_ranks = (first, tuple(rank + size for rank in first) if 2 * size <= cluster.num_devices else first)
        self._tables: dict[tuple[TensorType, bool, tuple[ReduceOp, ...]], BoxingTable] = {}
        self._ops_s: dict[StrategySet, Floats] = {} if ops_s is None else ops_s
        self._ring_ops_s: dict[StrategySet, Floats] = {}
        self._parts_s: PartsS = {} if parts_s is None else parts_s
        self._parts = tuple(LayoutCosts(part, mesh, exchanged=exchanged) for part in cluster.parts)

    def part_at(self, stage: int) -> int:
        """The number of the kind of node on which a stage lies; 0 where there is one."""
        if not self._parts:
            return 0
        return self.cluster.parts.index(self.cluster.part_of_all(self._ranks(stage))[0])

    def at(self, stage: int) -> LayoutCosts:
        """The costs of a stage, by its own device."""
        return self._parts[self.part_at(stage)] if self._parts else self

    def _ranks(self, stage: int) -> range:
        size = prod(self.mesh)
        return range(stage * size, (stage + 1) * size)

    def ops_s(self, strategies: StrategySet) -> Floats:
        """Seconds of one act of an op, per strategy."""
        known = self._ring_ops_s if strategies.has_rings else self._ops_s  # what travels takes other seconds on another cluster
        if strategies not in known:
            known[strategies] = np.array([self._op_s(strategy) for strategy in strategies.strategies])
        return known[strategies]

    def _op_s(self, strategy: Strategy) -> float:
        if strategy.ring is not None:
            return self._ring_s(strategy, strategy.ring)
        part = strategy.part
        if part not in self._parts_s:
            self._parts_s[part] = counted_work_s(self.cluster, part.op, part.types, *part.work, part.dtype)
        return self._parts_s[part]

    def _ring_s(self, strategy: Strategy, ring: Ring) -> float:
        """Attention in as many steps as the axis has devices: what travels to the next step does so during this one."""
        later, overhead_s = self.mesh[ring.axis] - 1, self.cluster.device.act_overhead_s
        first_s, other_s = (self._op_s(step) for step in ring.steps)
        shift_s = 2 * overhead_s + axis_boxing_s(self.cluster, self.mesh, ring.axis, Collective.SHIFT, ring.total_bytes)
        computed_s = first_s + later * other_s
        waiting_s = max((ring.shifts - ring.behind) * shift_s - (computed_s - other_s), 0.0)
        return computed_s + 2 * later * overhead_s + waiting_s + ring.behind * shift_s

    def boxing_table(self, logical: TensorType, bucketed: bool, kinds: tuple[ReduceOp, ...]) -> BoxingTable:
        """Costs of boxing a tensor type within a stage; ``kinds``: reductions that may occur."""
        key = (logical, bucketed, kinds)
        if key not in self._tables:
            times = self._exchanged.get(logical)

            def step_s(collective: Collective, total_bytes: float, axis: int) -> float:
                own_s = 0.0 if bucketed or collective is Collective.LOCAL else 2 * self.cluster.device.act_overhead_s
                more = times[axis] if times is not None and collective is Collective.ALL_TO_ALL else 1.0
                return own_s + axis_boxing_s(self.cluster, self.mesh, axis, collective, more * total_bytes, bucketed=bucketed)

            self._tables[key] = BoxingTable(logical, self.mesh, step_s, kinds)
        return self._tables[key]

    def boxing_s(self, logical: TensorType, src: NdSbp, dst: NdSbp, *, bucketed: bool = False) -> float:
        """Seconds from one layout to another on the same devices; infinite if no path exists."""
        table = self.boxing_table(logical, bucketed, kinds_in((src, dst)))
        return float(table.price_s[table.index[src], table.index[dst]])

    def boxing_steps(self, logical: TensorType, src: NdSbp, dst: NdSbp) -> tuple[Boxing, ...]:
        """The steps whose cost is boxing_s.

        Raises:
            Unsupported: no path exists.
        """
        return steps_between(self.boxing_table(logical, False, kinds_in((src, dst))), src, dst)

    def transfer_s(self, logical: TensorType, src: NdSbp, dst: NdSbp, *, bucketed: bool = False, stages: tuple[int, int] = (0, 1)) -> float:
        """Seconds from a layout on one stage to a layout on another: the sender's boxing, the link between them, the receiver's boxing.

        Args:
            stages: sender and receiver; among equal devices it makes no difference which they are.
        """
        leaving, landing = self.ends_of_transfer(logical, src, dst)
        sent = logical.with_shape(landing.local_shape(logical.shape, self.mesh)).size_bytes
        if self._parts:
            sender, receiver = map(self.at, stages)
            travel_s = link_transfer_s(self.cluster, self._ranks(stages[0]), self._ranks(stages[1]), sent)
            before_s = sender.boxing_s(logical, src, leaving, bucketed=bucketed)
            return before_s + travel_s + receiver.boxing_s(logical, landing, dst, bucketed=bucketed)
        travel_s = link_transfer_s(self.cluster, *self._next_stage_ranks, sent)
        return self.boxing_s(logical, src, leaving, bucketed=bucketed) + travel_s + self.boxing_s(logical, landing, dst, bucketed=bucketed)

    def ends_of_transfer(self, logical: TensorType, src: NdSbp, dst: NdSbp) -> tuple[NdSbp, NdSbp]:
        """(layout that is sent, layout that arrives).  Partial values are reduced before they are sent, to the wanted split if there is one."""
        landing = NdSbp(tuple(B if isinstance(entry, Partial) else entry for entry in dst.entries))
        leaving = src
        for axis, entry in enumerate(src.entries):
            if isinstance(entry, Partial):
                reduced = leaving.replace(axis, landing[axis])
                leaving = reduced if reduced.splits_evenly(logical.shape, self.mesh) else leaving.replace(axis, B)
        if not leaving.splits_evenly(logical.shape, self.mesh):
            leaving = NdSbp(tuple(B if isinstance(entry, Partial) else entry for entry in src.entries))
        return leaving, landing
