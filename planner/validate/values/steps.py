"""The laws of one boxing step along one mesh axis: which layout it makes of which, if every rank does its part (SEMANTICS 2).

    S(d) -> *, * -> S(d)     no later axis may split dim d: its parts would lie inside of those that the step joins or cuts
    S(d)+t -> *, * -> S(d)+t to or from another split of dim d alone: the parts are shifted along the axis
    P(op) -> *               no later axis may be partial by another op: reductions of two kinds do not commute
    * -> S(d)                the local extent of dim d must suffice for all parts (SEMANTICS 1.2)

A number is exchanged, never changed (SEMANTICS 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.errors import InvalidPlan
from planner.ir.graph import Op, Ref
from planner.ir.sbp import Broadcast, NdSbp, Partial, Split
from planner.ir.tensor import DType, TensorType

__all__ = ["BOXING_OP", "LocalStep", "broken_law"]

BOXING_OP = "regista.boxing"


def broken_law(type_: TensorType, mesh: Sequence[int], src: NdSbp, dst: NdSbp, axis: int) -> str | None:
    """Why a step along ``axis`` does not turn ``src`` into ``dst``; None: it does."""
    if src.replace(axis, dst[axis]) != dst:
        return f"{src} and {dst} differ beside axis {axis}"
    if src == dst:
        return None
    before, after = src[axis], dst[axis]
    later = {entry.dim for entry in src.entries[axis + 1 :] if isinstance(entry, Split)}
    for entry in (before, after):
        if isinstance(entry, Split) and entry.dim in later:
            return f"a later axis splits dim {entry.dim} of {src}, too"
    turned = any(isinstance(entry, Split) and entry.turn for entry in (before, after))
    if turned and not (isinstance(before, Split) and isinstance(after, Split) and before.dim == after.dim):
        return f"parts that lie turned are only shifted, not turned from {before} into {after}"
    if isinstance(before, Partial):
        if isinstance(after, Partial):
            return f"{before} is reduced by its own operation only, not turned into {after}"
        if any(isinstance(entry, Partial) and entry != before for entry in src.entries[axis + 1 :]):
            return f"{src} is partial by two operations, of which the inner one must be reduced first"
    if isinstance(after, Partial) and type_.dtype is DType.BOOL:
        return "truth values have no partial sums"
    try:
        dst.region(type_.shape, mesh, (0,) * len(mesh))
    except InvalidPlan as error:
        return str(error)
    return None


class LocalStep:
    """A ``regista.boxing`` op: a step without communication inside a fragment, as its arguments say it.

    Args:
        op: (value, src, dst, axis[, extent]); ``extent`` of S(d) -> P is that of dim d with the axis uncut.

    Raises:
        InvalidPlan: the arguments have another form.
    """

    __slots__ = ("axis", "dst", "extent", "src", "value")

    def __init__(self, op: Op, mesh: Sequence[int]) -> None:
        match op.args:
            case (Ref(value), str(src), str(dst), int(axis), *rest) if not op.kwargs and len(op.outputs) == 1 and 0 <= axis < len(mesh):
                (self.src,), (self.dst,) = NdSbp.parse(src).entries, NdSbp.parse(dst).entries
                self.value, self.axis = value, axis
                self.extent = rest[0] if rest else None
            case _:
                raise InvalidPlan(f"{op.where()}: {BOXING_OP} takes (value, src, dst, axis[, extent]), found {op.args}")

    def of(self, type_: TensorType, mesh: Sequence[int], layout: NdSbp) -> NdSbp | str:
        """The layout after the step, or why there is none."""
        if layout[self.axis] != self.src:
            return f"it takes {self.src} on axis {self.axis}, and is given {layout}"
        after = layout.replace(self.axis, self.dst)
        if self.src == self.dst:
            return after
        if not isinstance(self.src, Broadcast) and not (isinstance(self.src, Split) and isinstance(self.dst, Partial)):
            return f"{self.src} -> {self.dst} moves data between ranks, which a fragment cannot"
        law = broken_law(type_, mesh, layout, after, self.axis)
        if law is None and isinstance(self.src, Split):
            extent = after.local_shape(type_.shape, mesh)[self.src.dim]
            if self.extent != extent:
                law = f"it pads dim {self.src.dim} to {self.extent}, the axis' parts have {extent} together"
        return after if law is None else law
