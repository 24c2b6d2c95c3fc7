"""The memory of buckets: scratch that the acts of a stream share, and tensors of registers that lie so that they are a bucket already."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from backend.comm.buckets import Bucket, Needs, Use
from backend.memory.packing import ALIGNMENT_BYTES

__all__ = ["Scratch", "alike", "packed", "unflat"]


class Scratch:
    """What exchanges send and receive on the way, in memory that all of one stream use again: acts of a stream never overlap.

    Taken anew in every act, such buckets grew the heap by their size now and then, 24 MiB each [measured 2026-11-21].  The Plan does not
    count it; see collectives.scratch_bytes.

    Args:
        device: where ``reserve`` takes it; None: the host's memory.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._held: dict[Use, Tensor] = {}

    @property
    def held_bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def reserve(self, needs: Needs) -> None:
        """Take the memory for every use now."""
        for use, size_bytes in needs.items():
            if size_bytes:
                self.take(use, torch.empty(0, dtype=torch.uint8, device=self._device), size_bytes)

    def take(self, use: Use, like: Tensor, numel: int) -> Tensor:
        """A flat tensor of ``like``'s dtype, until the next one is taken for the same use; its values are anybody's."""
        size_bytes = numel * like.element_size()
        held = self._held.get(use)
        if held is None or held.numel() < size_bytes:
            self._held.pop(use, None)
            held = self._held[use] = torch.empty(size_bytes, dtype=torch.uint8, device=like.device)
        return held[:size_bytes].view(like.dtype)

    def sent(self, bucket: Bucket, values: Sequence[Tensor]) -> Tensor:
        """The pieces of a bucket one behind the other; a single tensor that lies so is not copied."""
        if not bucket.scratch_sent:
            return values[0].reshape(-1)
        pieces = [values[number].narrow(dim, offset, length) for number, dim, offset, length in bucket.cuts] if bucket.cuts else values
        flat = self.take("sent", values[0], bucket.scratch_sent)
        torch.cat([piece.reshape(-1) for piece in pieces], out=flat[: bucket.own_length])
        return flat


def unflat(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Tensors of these shapes that lie one behind the other in ``flat``."""
    return [piece.view(shape) for piece, shape in zip(torch.split(flat, [prod(s) for s in shapes]), shapes, strict=True)]


def packed(slots: Sequence[Tensor], gap_bytes: int = ALIGNMENT_BYTES) -> Tensor | None:
    """One flat tensor over contiguous tensors of one dtype that lie one behind the other in memory, else None.

    Args:
        gap_bytes: the space between two of them is less; it belongs to the result.
    """
    first = slots[0]
    at, size = first.data_ptr(), first.element_size()
    for slot in slots:
        if not 0 <= slot.data_ptr() - at < gap_bytes or not slot.is_contiguous() or slot.dtype != first.dtype:
            return None
        at = slot.data_ptr() + slot.nbytes
    return first.as_strided(((at - first.data_ptr()) // size,), (1,), first.storage_offset())


def alike(slots: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Both as one flat tensor, if each lies in one bucket and tensor by tensor at the same distance from its first, else None."""
    same = all(
        slot.data_ptr() - slots[0].data_ptr() == value.data_ptr() - values[0].data_ptr() and slot.nbytes == value.nbytes
        for slot, value in zip(slots, values, strict=True)
    )
    one, other = (packed(slots), packed(values)) if same else (None, None)
    return None if one is None or other is None or one.dtype != other.dtype else (one, other)
