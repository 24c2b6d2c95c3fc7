"""What is known of the tensors that a Plan moves about: facts.

A *fact* (n, L) of a tensor says: the parts that the ranks of a placement hold, put together as layout L says, are the value of number n.  Several
facts may hold of one tensor at once: local zeros are the whole zeros (B), and partial sums of zeros (P).  An op is proven for any facts of its
operands, and of what lies in a Regst one fact is needed, in the layout that the Regst declares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.ir.plan import PlacedTensor, Plan
from planner.ir.sbp import B, NdSbp
from planner.validate.values.numbers import ValueNumbers

__all__ = ["LAYOUT_MARK", "RAW", "Contents", "Fact", "Facts", "single_axes_whole"]

LAYOUT_MARK = "@"
"""Between a value and a layout in a name."""

RAW = "raw:"
"""The prefix of the names of raw tensors."""

Fact = tuple[int, NdSbp]
Facts = tuple[Fact, ...]


def single_axes_whole(layout: NdSbp, mesh: tuple[int, ...]) -> NdSbp:
    """The layout with B along each axis of one device, where all layouts are the same."""
    if 1 not in mesh:
        return layout
    return NdSbp(tuple(B if parts == 1 else entry for entry, parts in zip(layout.entries, mesh, strict=True)))


@dataclass(slots=True)
class Contents:
    """The facts of every tensor of every Regst, (Regst, index) -> facts, as far as they are proven."""

    plan: Plan
    numbers: ValueNumbers
    facts: dict[tuple[str, int], Facts] = field(default_factory=dict)

    def placed(self, regst: str, index: int) -> PlacedTensor:
        return self.plan.regst[regst].tensors[index]

    def declared(self, regst: str, index: int) -> NdSbp:
        """The layout that the Regst declares."""
        placed = self.plan.regst[regst]
        return single_axes_whole(placed.tensors[index].sbp, self.plan.placement[placed.placement].mesh)

    def agreeing(self, regst: str, index: int, facts: Facts) -> Facts:
        """Those of the facts that have the type and the layout declared."""
        tensor, layout = self.placed(regst, index), self.declared(regst, index)
        kept = [(number, held) for number, held in facts if held == layout]
        types = [self.numbers.type_of(number) for number, _ in kept]
        return tuple(f for f, t in zip(kept, types, strict=True) if (t.shape, t.dtype) == (tensor.shape, tensor.dtype))

    def numbers_in(self, regst: str, index: int) -> frozenset[int]:
        """The values that the tensor is proven to be."""
        return frozenset(number for number, _ in self.facts.get((regst, index), ()))
