"""The way of each value from its producer to each of its readers.

    producer's layout  --boxing-->  layout that leaves  --StageTransfer-->  layout that lands  --boxing-->  shared layout  --boxing-->  reader's

The transfer and the steps before it are there only between stages.  Values that several ops of a stage read pass through the layout in which
they share them, unless the direct way costs no more than the last leg alone.
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
"""Two ways are equally dear where their prices differ by less: more than the tie-breaking terms of their steps add up to."""


def routes_of(
    staged: Staged,
    prices: LayoutCosts,
    *,
    ops: Mapping[str, LocalOp],
    states: Mapping[str, NdSbp],
    pinned: Mapping[str, NdSbp],
    delivered: Mapping[tuple[str, int], NdSbp],
) -> Mapping[Reader, tuple[Move, ...]]:
    """Every reader -> the moves that bring its value, in order; arguments as the fields of planner.search.model.Assignment.

    Readers are the ops, the states that are replaced, and on the loss' own stage the user, who gets it whole.  Batch inputs and constants
    that are not pinned are there in any layout, so they have no route.
    """
    sources = {value: (staged.home(value), sbp) for value, sbp in states.items()}
    for op in staged.graph.ops:
        for value, sbp in zip(op.outputs, ops[op.id].outputs, strict=True):
            if value is not None:
                sources[value] = staged.stage[op.id], sbp if sbp is not None else NdSbp.broadcast(len(prices.mesh))
    known: dict[tuple[TensorType, int, NdSbp, int, NdSbp, NdSbp], tuple[Move, ...]] = {}
    routes: dict[Reader, tuple[Move, ...]] = {}
    for value, stage, wanted in _readers(staged, ops, states, len(prices.mesh)):
        source = sources.get(value, (stage, pinned[value]) if value in pinned else None)
        if source is not None and (value, stage, wanted) not in routes:
            key = (staged.graph.values[value], *source, stage, wanted, delivered.get((value, stage), wanted))
            if key not in known:
                known[key] = _route(prices, *key)
            routes[value, stage, wanted] = known[key]
    return routes


def _readers(staged: Staged, ops: Mapping[str, LocalOp], states: Mapping[str, NdSbp], num_axes: int) -> Iterator[Reader]:
    for op in staged.graph.ops:
        for value in dict.fromkeys(op.inputs):
            yield value, staged.stage[op.id], ops[op.id].inputs[op.inputs.index(value)]
    for old, new in staged.graph.updates.items():
        yield new, staged.home(old), states[old]
    loss = staged.graph.mean_loss
    for op in staged.graph.ops:
        if loss in op.outputs:
            yield loss, staged.stage[op.id], NdSbp.broadcast(num_axes)


def _route(
    prices: LayoutCosts, logical: TensorType, src_stage: int, src: NdSbp, dst_stage: int, dst: NdSbp, shared: NdSbp
) -> tuple[Move, ...]:
    """The moves from one (stage, layout) to another; ``shared``: the layout in which several readers on ``dst_stage`` share the value."""
    if src_stage != dst_stage:
        leaving, landing = prices.ends_of_transfer(logical, src, shared)
        sent: tuple[Move, ...] = (*prices.boxing_steps(logical, src, leaving), StageTransfer(src_stage, dst_stage, landing))
        return (*sent, *prices.boxing_steps(logical, landing, shared), *prices.boxing_steps(logical, shared, dst))
    if dst == shared or prices.boxing_s(logical, src, dst) <= prices.boxing_s(logical, shared, dst) + _TIE_S:
        return prices.boxing_steps(logical, src, dst)
    return (*prices.boxing_steps(logical, src, shared), *prices.boxing_steps(logical, shared, dst))
