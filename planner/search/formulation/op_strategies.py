"""The strategies that pins and a ZeRO level allow for an op, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.ir.sbp import NdSbp
from planner.search.context import Context, attending, is_attention, is_long, rings
from planner.search.formulation.options import FormulationOptions
from planner.search.layout_costs import LayoutCosts
from planner.search.routed import experts_of, op_times
from planner.search.strategies import StrategySet, StrategySets
from planner.search.zero import most_split
from planner.solve.problem import Floats
from planner.stages.experts import ExpertOp

__all__ = ["OpStrategies"]


class OpStrategies:
    """Strategy sets and costs of a graph's ops, each computed once.

    Args:
        pinned: value that a module returns -> its pinned layout.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        strategy_sets: StrategySets,
        costs: LayoutCosts,
        pinned: Mapping[str, NdSbp],
        options: FormulationOptions,
    ) -> None:
        self._graph, self._strategy_sets, self._costs, self._pinned, self._options = graph, strategy_sets, costs, pinned, options
        self._of_op: dict[str, StrategySet] = {}
        self._experts = {} if options.load is None else experts_of(graph, options.load).ops
        self._cost_of: dict[tuple[StrategySet, int, int, ExpertOp | None], Floats] = {}

    def of(self, op: Op) -> StrategySet:
        """The op's strategies.

        Raises:
            UnknownOp: the op has no rule.   Unsupported: none of them agrees with the pins.
        """
        if op.id not in self._of_op:
            self._of_op[op.id] = self._allowed(op)
        return self._of_op[op.id]

    def cost_s(self, op: Op, stage: int) -> Floats:
        """Seconds per step of each strategy of an op, on the device of its stage.

        An accumulation costs nothing, because it is performed while the gradient is written.
        """
        strategies, expert = self.of(op), self._experts.get(op.id)
        count = self._options.pipeline_slots if op.role.per_micro_batch else 1
        if op.role is Role.ACCUMULATE:
            count = 0  # a cost would reward reducing the gradient before it, once per micro-batch
        key = (strategies, count, self._costs.part_at(stage), expert)
        if key not in self._cost_of:
            seconds = count * self._costs.at(stage).ops_s(strategies)
            if expert is not None and self._options.load is not None:
                mesh, load = self._costs.mesh, self._options.load
                seconds = seconds * np.array([op_times(expert, strategy, mesh, load) for strategy in strategies.strategies])
            self._cost_of[key] = seconds
        return self._cost_of[key]

    def _attending(self, op: Op, legal: StrategySet) -> StrategySet:
        """Attention of long sequences may go around rings; a way that is asked for is taken."""
        types, way, mesh = self._graph.values, self._options.context, self._costs.mesh
        known, key = self._strategy_sets.narrowed, (legal, way)
        if key not in known:
            strategies = legal.strategies
            if way is Context.RING or is_long(op, types):
                strategies += rings(op, types, strategies, mesh)
            if way is not None:
                strategies = attending(op, types, strategies, way, mesh)
            known[key] = legal if strategies == legal.strategies else StrategySet(strategies)
        return known[key]

    def _allowed(self, op: Op) -> StrategySet:
        legal = self._strategy_sets.of(op, self._graph.values)
        if op.role is Role.ACCUMULATE and self._options.zero in (2, 3) and self._options.micro_batches > 1:
            legal = self._narrowed(legal, "most split", most_split([s.outputs[0] for s in legal.strategies]))
        if is_attention(op):
            legal = self._attending(op, legal)
        pins = tuple((place, self._pinned[v]) for place, v in enumerate(op.outputs) if v is not None and v in self._pinned)
        if not pins:
            return legal
        agreeing = [all(s.outputs[place] == sbp for place, sbp in pins) for s in legal.strategies]
        if not any(agreeing):
            allowed = "; ".join(dict.fromkeys(str(s.outputs[pins[0][0]]) for s in legal.strategies))
            mesh = "x".join(map(str, self._costs.mesh))
            raise Unsupported(f"{op.where()} cannot return {pins[0][1]} on mesh {mesh}; its rule allows {allowed}")
        return self._narrowed(legal, pins, agreeing)

    def _narrowed(self, legal: StrategySet, asked: object, is_taken: Sequence[bool]) -> StrategySet:
        """The strategies that are taken; one set for all ops of a set of which the same is asked."""
        known, key = self._strategy_sets.narrowed, (legal, asked)
        if key not in known:
            known[key] = StrategySet(tuple(s for s, taken in zip(legal.strategies, is_taken, strict=True) if taken))
        return known[key]
