"""Local boxing: the steps that need no neighbour, only the rank's own coordinate (SEMANTICS 2, first and last row).

B -> S(d)     keep the own part               B -> P(sum)  keep the value at coordinate 0, zeros elsewhere
S(d) -> P     pad with the neutral element    B -> P(max), P(min)  keep the value everywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from backend.layout.sharding import cut, neutral
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.graph import Arg, Op, Ref
from planner.ir.sbp import Broadcast, NdSbp, Partial, ReduceOp, Sbp, Split, part_of

__all__ = ["BOXING", "local_step", "pad_part", "parse_boxing"]

BOXING = "regista.boxing"


def pad_part(value: Tensor, dim: int, op: ReduceOp, extent: int, parts: int, index: int) -> Tensor:
    """S(dim) -> P(op): the own part at its place, the neutral element elsewhere."""
    offset, length = part_of(extent, parts, index)
    if value.shape[dim] != length:
        raise InvalidPlan(f"part {index} of {parts} of a dim of {extent} has length {length}, found {value.shape[dim]}")
    shape = list(value.shape)
    shape[dim] = extent
    padded = neutral(op, value.new_empty(shape))
    padded.narrow(dim, offset, length).copy_(value)
    return padded


def local_step(src: Sbp, dst: Sbp, parts: int, index: int, extent: int | None = None) -> Callable[[Tensor], Tensor]:
    """The function that one rank applies to its part.

    Args:
        parts, index: size of the mesh axis and the rank's coordinate on it.
        extent: for S(d) -> P the length of dim d before this axis cut it.

    Raises:
        Unsupported: the step needs a collective.
        InvalidPlan: S(d) -> P without extent.
    """
    match src, dst:
        case _ if src == dst:
            return lambda value: value
        case Broadcast(), _:
            return lambda value: cut(dst, value, parts, index)
        case Split(dim), Partial(op):
            if extent is None:
                raise InvalidPlan(f"boxing {src} -> {dst} needs the extent of dim {dim}; give it as the fifth argument")
            return lambda value: pad_part(value, dim, op, extent, parts, index)
        case _:
            raise Unsupported(f"boxing {src} -> {dst} moves data between ranks; it is a BOXING task, not part of a fragment")


def parse_boxing(op: Op, mesh: Sequence[int], coordinate: Sequence[int]) -> tuple[str, Callable[[Tensor], Tensor]]:
    """(value read, function) of a ``regista.boxing`` op: args are (Ref, src, dst, axis[, extent]).

    Raises:
        InvalidPlan: the arguments have another form.
    """
    args: tuple[Arg, ...] = op.args
    if len(args) not in (4, 5) or not isinstance(args[0], Ref) or not isinstance(args[1], str) or not isinstance(args[2], str):
        raise InvalidPlan(f"{op.where()}: {BOXING} takes (value, src, dst, axis[, extent]), found {args}")
    axis, extent = args[3], args[4] if len(args) == 5 else None
    if not isinstance(axis, int) or not 0 <= axis < len(mesh) or not (extent is None or isinstance(extent, int)):
        raise InvalidPlan(f"{op.where()}: axis {axis!r} and extent {extent!r} must be whole numbers, the axis one of mesh {tuple(mesh)}")
    (src,), (dst,) = NdSbp.parse(args[1]).entries, NdSbp.parse(args[2]).entries
    return args[0].value, local_step(src, dst, mesh[axis], coordinate[axis], extent)
