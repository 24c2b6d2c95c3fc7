"""The route of each value from its producer to each of its readers.

    producer's layout  --boxing-->  layout sent  --StageTransfer-->  layout that arrives  --boxing-->  shared layout  --boxing-->  reader's

The transfer and the steps before it exist only between stages.  A value that several ops of a stage read is first boxed to the layout that they
share, unless the direct route costs at most as much as the steps after the shared layout alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.boxing.table import STEP_S
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp
from planner.ir.tensor import TensorType
from planner.search.layout_costs import LayoutCosts
from planner.search.strategies import LocalOp
from planner.stages import Staged

__all__ = ["Move", "Reader", "StageTransfer", "routes_of"]


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """A value travels to another stage and lands there in layout ``dst``."""

    src_stage: int
    dst_stage: int
    dst: NdSbp


Move = Boxing | StageTransfer
Reader = tuple[str, int, NdSbp]
"""(value, stage on which it is read, layout in which it is read)."""

_TIE_S = 10 * STEP_S
"""Two routes whose costs differ by less count as equal; it exceeds the sum of the tie-breaking terms of their steps."""


def routes_of(
    staged: Staged,
    costs: LayoutCosts,
    *,
    ops: Mapping[str, LocalOp],
    states: Mapping[str, NdSbp],
    pinned: Mapping[str, NdSbp],
    delivered: Mapping[tuple[str, int], NdSbp],
) -> Mapping[Reader, tuple[Move, ...]]:
    """Reader -> the moves that deliver its value, in order; the arguments are fields of planner.search.model.Assignment.

    Readers are the ops, the states that are replaced, and on the stage of the loss the user, who gets the whole loss.  Batch inputs and constants
    that are not pinned are available in any layout, so they have no route.
    """
    sources = {value: (staged.state_stage(value), sbp) for value, sbp in states.items()}
    for op in staged.graph.ops:
        for value, sbp in zip(op.outputs, ops[op.id].outputs, strict=True):
            if value is not None:
                sources[value] = staged.stage[op.id], sbp if sbp is not None else NdSbp.broadcast(len(costs.mesh))
    route_of: dict[tuple[TensorType, int, NdSbp, int, NdSbp, NdSbp], tuple[Move, ...]] = {}
    routes: dict[Reader, tuple[Move, ...]] = {}
    for value, stage, wanted in _readers(staged, ops, states, len(costs.mesh)):
        source = sources.get(value, (stage, pinned[value]) if value in pinned else None)
        if source is not None and (value, stage, wanted) not in routes:
            key = (staged.graph.values[value], *source, stage, wanted, delivered.get((value, stage), wanted))
            if key not in route_of:
                route_of[key] = _route(costs, *key)
            routes[value, stage, wanted] = route_of[key]
    return routes


def _readers(staged: Staged, ops: Mapping[str, LocalOp], states: Mapping[str, NdSbp], num_axes: int) -> Iterator[Reader]:
    for op in staged.graph.ops:
        for value in dict.fromkeys(op.inputs):
            yield value, staged.stage[op.id], ops[op.id].inputs[op.inputs.index(value)]
    for old, new in staged.graph.updates.items():
        yield new, staged.state_stage(old), states[old]
    loss = staged.graph.mean_loss
    for op in staged.graph.ops:
        if loss in op.outputs:
            yield loss, staged.stage[op.id], NdSbp.broadcast(num_axes)


def _route(
    costs: LayoutCosts, logical: TensorType, src_stage: int, src: NdSbp, dst_stage: int, dst: NdSbp, shared: NdSbp
) -> tuple[Move, ...]:
    """The moves from one (stage, layout) to another; ``shared``: the layout in which several readers on ``dst_stage`` share the value."""
    sender, costs = costs.at(src_stage), costs.at(dst_stage)
    if src_stage != dst_stage:
        leaving, landing = costs.ends_of_transfer(logical, src, shared)
        sent: tuple[Move, ...] = (*sender.boxing_steps(logical, src, leaving), StageTransfer(src_stage, dst_stage, landing))
        return (*sent, *costs.boxing_steps(logical, landing, shared), *costs.boxing_steps(logical, shared, dst))
    if dst == shared or costs.boxing_s(logical, src, dst) <= costs.boxing_s(logical, shared, dst) + _TIE_S:
        return costs.boxing_steps(logical, src, dst)
    return (*costs.boxing_steps(logical, src, shared), *costs.boxing_steps(logical, shared, dst))
