"""Which rank sends which piece to which rank in a TRANSFER between two placements.

Both sides know shape, NdSbp, mesh and coordinate, so the pieces follow without any talk (SEMANTICS 1.3).  Where several ranks hold the same
element (a B axis), receivers choose among them round-robin, so that the load spreads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from sys import maxsize

from planner.ir.errors import InvalidPlan
from planner.ir.plan import PlacedTensor, Placement, Plan, Task

__all__ = ["Piece", "check_sent", "pieces", "routes"]

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor: (offset, length) per dim, in the sender's and in the receiver's local coordinates."""

    src_rank: int
    dst_rank: int
    src_spans: tuple[Span, ...]
    dst_spans: tuple[Span, ...]

    @property
    def numel(self) -> int:
        numel = 1
        for _, length in self.src_spans:
            numel *= length
        return numel


def pieces(src: PlacedTensor, src_placement: Placement, dst: PlacedTensor, dst_placement: Placement) -> tuple[Piece, ...]:
    """All pieces that bring ``src`` on its placement to ``dst`` on its own, every receiver's element exactly once.

    Raises:
        InvalidPlan: see check_sent.
    """
    check_sent(src, dst)
    holders: dict[tuple[Span, ...], list[int]] = {}
    for rank in src_placement.ranks:
        region = src.sbp.region(src.shape, src_placement.mesh, src_placement.coordinate(rank))
        holders.setdefault(region, []).append(rank)
    place = {region: number for number, region in enumerate(holders)}
    spans_of_dim = [sorted({region[dim] for region in holders}) for dim in range(len(src.shape))]
    overlapping: list[Piece] = []
    for number, dst_rank in enumerate(dst_placement.ranks):
        wanted = dst.sbp.region(dst.shape, dst_placement.mesh, dst_placement.coordinate(dst_rank))
        near = product(*(_meeting(spans, span) for spans, span in zip(spans_of_dim, wanted, strict=True)))
        for held in sorted((region for region in near if region in place), key=place.__getitem__):
            ranks = holders[held]
            spans = [_overlap(a, b) for a, b in zip(held, wanted, strict=True)]
            overlapping.append(
                Piece(
                    src_rank=ranks[number % len(ranks)],
                    dst_rank=dst_rank,
                    src_spans=tuple((offset - base, length) for (offset, length), (base, _) in zip(spans, held, strict=True)),
                    dst_spans=tuple((offset - base, length) for (offset, length), (base, _) in zip(spans, wanted, strict=True)),
                )
            )
    return tuple(overlapping)


def check_sent(src: PlacedTensor, dst: PlacedTensor) -> None:
    """Raises InvalidPlan: a side is partial, or the shapes differ."""
    if src.sbp.has_partial or dst.sbp.has_partial:
        raise InvalidPlan(f"transfer of {src.name}: {src.sbp} -> {dst.sbp}; partial values are reduced before they travel")
    if src.shape != dst.shape:
        raise InvalidPlan(f"transfer of {src.name}: shape {src.shape} leaves, {dst.shape} is to arrive; a transfer changes no shape")


def _meeting(spans: Sequence[Span], wanted: Span) -> Sequence[Span]:
    """Those of the sorted parts of a dim, which are equal or disjoint, that have an element of ``wanted``."""
    first = max(0, bisect_right(spans, (wanted[0], maxsize)) - 1)
    return [span for span in spans[first : bisect_left(spans, (wanted[0] + wanted[1], 0))] if _overlap(span, wanted)[1] > 0]


def _overlap(a: Span, b: Span) -> Span:
    start = max(a[0], b[0])
    return start, min(a[0] + a[1], b[0] + b[1]) - start


def routes(plan: Plan, task: Task) -> Mapping[int, tuple[int, ...]]:
    """Sender rank -> the ranks it sends to in this TRANSFER (empty for a sender whose copy nobody needs)."""
    src_placement = plan.placement[task.placement]
    table: dict[int, dict[int, None]] = {rank: {} for rank in src_placement.ranks}
    for read, write in zip(task.reads, task.writes, strict=True):
        src = plan.regst[read.regst].tensors[read.index]
        target = plan.regst[write.regst]
        for piece in pieces(src, src_placement, target.tensors[write.index], plan.placement[target.placement]):
            table[piece.src_rank][piece.dst_rank] = None
    return {rank: tuple(sorted(targets)) for rank, targets in table.items()}
