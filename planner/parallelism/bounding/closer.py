"""The next closer bound of a shape, as a function of the shape and of the bound that it has, whoever works it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.proven import BoundKind
from planner.parallelism.shape import Shape
from planner.solve.problem import NotFoundInTime

__all__ = ["BoundKind", "Closer", "Entry", "WholeBounds", "closer_bounds"]

WholeBounds = Callable[[Shape, bool, BoundKind], Iterator[float]]
"""(shape, whether memory binds, kind) -> lower bounds on its plans in seconds, each at least the one before, of kind END_STAGES or WHOLE_MODEL.

May raise NotFoundInTime; what came before it holds."""


Entry = tuple[float, Shape, BoundKind, bool]
"""Of a queue: (lower bound in seconds, shape, the bound's kind, whether memory binds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closer:
    """A closer bound of a shape.

    bound_s: in seconds.   memory_binds: it is known that the layouts of a search without limit do not fit.
    too_large_bytes: what the fullest device of every plan of the shape holds at least, where that is more than devices have; 0: it may fit.
    s_per_byte: the multiplier of memory that gave the bound.   computed_s: of what the bound is a bound on, what is computed alone takes at least.
    """

    bound_s: float
    memory_binds: bool = False
    too_large_bytes: float = 0.0
    s_per_byte: float = 0.0
    computed_s: float = 0.0


def closer_bounds(bounds: ShapeBounds, whole: WholeBounds, shape: Shape, kind: BoundKind, memory_binds: bool) -> Iterator[Closer]:
    """The bounds of the kind after ``kind``, of which the highest counts; none: the time was up."""
    match kind:
        case BoundKind.ROOFLINE:
            yield Closer(bound_s=bounds.forward_part_s(shape), computed_s=bounds.computed_s(shape))
        case BoundKind.FORWARD_PART:
            yield Closer(bound_s=bounds.largest_piece_s(shape), computed_s=bounds.computed_s(shape))
        case BoundKind.LARGEST_PIECE:
            share = bounds.of(shape)
            stages = () if (stage := share.unlimited_stage) is None else (stage,)
            yield Closer(bound_s=share.unlimited_s, computed_s=bounds.computed_s(shape, stages))
        case BoundKind.UNLIMITED:
            with suppress(NotFoundInTime):  # it is not known whether memory binds, and the bound stays as it is
                yield from _within_memory(bounds, shape)
        case _:
            with suppress(NotFoundInTime):
                found = whole(shape, memory_binds, BoundKind(kind + 1))
                computed_s = bounds.computed_s(shape, range(shape.stages))
                yield from (Closer(bound_s=bound_s, memory_binds=memory_binds, computed_s=computed_s) for bound_s in found)


def _within_memory(bounds: ShapeBounds, shape: Shape) -> Iterator[Closer]:
    """First at the multiplier of memory that was best on another network, then at those that are searched."""
    share, memory = bounds.of(shape), bounds.cluster.device.memory_bytes
    closer = partial(Closer, memory_binds=True, computed_s=bounds.computed_s(shape, range(shape.stages)))
    if known := bounds.known_s_per_byte.get(shape, 0.0):
        yield closer(bound_s=share.bound_at(known, memory), s_per_byte=known)
    if share.cheapest.held_bytes <= memory:
        yield Closer(bound_s=0.0)
    elif share.smallest.held_bytes > memory and share.least_bytes > memory:
        yield Closer(bound_s=0.0, memory_binds=True, too_large_bytes=share.least_bytes)
    else:
        bound_s, multiplier = share.bound_within(memory, only_bound=True)
        yield closer(bound_s=bound_s, s_per_byte=multiplier)
