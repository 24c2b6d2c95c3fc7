"""regista.sequence_lengths: the lengths of packed sequences as they are, where torch packs such sequences; otherwise the step ends with the numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram

__all__ = ["check_lengths", "sequence_lengths"]

_MOST_SHOWN = 16


def check_lengths(lengths: list[int], steps: int, enforce_sorted: bool) -> None:
    """Refuse lengths of which torch packs no sequences of up to ``steps`` steps.

    Raises:
        InvalidProgram: one is below 1 or above ``steps``, or they do not decrease where ``enforce_sorted`` says so.
    """
    shown = f"[{', '.join(map(str, lengths[:_MOST_SHOWN]))}{', ...' if len(lengths) > _MOST_SHOWN else ''}]"
    outside = next(((place, length) for place, length in enumerate(lengths) if not 0 < length <= steps), None)
    if outside is not None:
        raise InvalidProgram(
            f"pack_padded_sequence is given the lengths {shown}, but a sequence of this batch has 1 to {steps} steps, and sequence {outside[0]} "
            f"has {outside[1]}; leave out what is empty, and cut what is longer"
        )
    if enforce_sorted and lengths != sorted(lengths, reverse=True):
        raise InvalidProgram(f"the lengths {shown} are not in decreasing order; give pack_padded_sequence enforce_sorted=False")


def sequence_lengths(lengths: Tensor, steps: int, enforce_sorted: bool) -> Tensor:
    """A copy of the lengths [N] of sequences of up to ``steps`` steps.  Raises InvalidProgram as check_lengths does."""
    check_lengths(lengths.tolist(), steps, enforce_sorted)
    return lengths.clone()


def _type(lengths: Tensor, steps: int, enforce_sorted: bool) -> Tensor:
    return torch.empty_like(lengths)


torch.library.custom_op("regista::sequence_lengths", sequence_lengths, mutates_args=()).register_fake(_type)
