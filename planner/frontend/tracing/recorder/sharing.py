"""State that shares memory at the end of a step: a write into the one is a write into the other, from the next step on.

    self.shadow = self.weight.detach()      an optimizer writes the weight, and with it the shadow
    self.low = self.high = x.mean(0)        low.add_(1) of the next step changes high, too

A plan keeps each state by itself, so that this would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from planner.frontend.tracing.recorder.traced import Traced
from planner.frontend.tracing.values import InvalidForBothTracers

__all__ = ["refuse_shared_memory"]


def refuse_shared_memory(names: Sequence[str], at_the_end: Sequence[Tensor]) -> None:
    """
    Args:
        names: of a module's state.   at_the_end: what each is then.

    Raises:
        InvalidForBothTracers: two of them are one tensor, or views of one.
    """
    owners: dict[int, str] = {}
    for name, tensor in zip(names, at_the_end, strict=True):
        if isinstance(tensor, Traced) and (other := owners.setdefault(id(tensor.aliases), name)) != name:
            raise InvalidForBothTracers(
                f"forward gives {name} the memory of {other}: whatever is written into one of them later would change both, but a plan keeps "
                f"each by itself; copy the values ({name}.copy_(...)), or clone() what is assigned"
            )
