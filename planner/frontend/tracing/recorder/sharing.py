"""State that shares memory at the end of a step, and that a step writes in place: from the next step on a write into the one is one into the other.

    self.shadow = self.weight.detach()                    an optimizer writes the weight, and with it the shadow
    self.low.add_(1); self.low = self.high = x.mean(0)    low.add_(1) of the next step changes high, too

A plan keeps each state by itself, so that this would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from planner.frontend.tracing.recorder.traced import Traced
from planner.frontend.tracing.refusals import InvalidForBothTracers

__all__ = ["refuse_shared_memory"]


def refuse_shared_memory(names: Sequence[str], at_the_beginning: Sequence[Traced], at_the_end: Sequence[Tensor]) -> None:
    """
    Args:
        names: of a module's state.   at_the_beginning, at_the_end: of a step, what each is.

    Raises:
        InvalidForBothTracers: two of them are one tensor then, or views of one, and one is trained, or is written in place.
    """
    written = {name for name, tensor in zip(names, at_the_beginning, strict=True) if tensor.requires_grad or tensor.aliases.generation}
    owners: dict[int, str] = {}
    for name, tensor in zip(names, at_the_end, strict=True):
        other = owners.setdefault(id(tensor.aliases), name) if isinstance(tensor, Traced) else name
        if other != name and written & {name, other}:
            raise InvalidForBothTracers(
                f"forward gives {name} the memory of {other}: what the next step writes into one of them would change both, but a plan keeps "
                f"each by itself; copy the values ({name}.copy_(...)), or clone() what is assigned"
            )
