"""Collectives of processes of one host through memory that all of them map: copy in, meet, read what the others left.

    memory     | counters | rounds | slot 0 of rank 0 | slot 0 of rank 1 | slot 1 of rank 0 | slot 1 of rank 1 |
    round n    every rank writes its slot n mod 2  -->  meets the others  -->  reads their slots n mod 2

What is longer than a slot goes in rounds.  Two slots make one meeting per round enough: who writes slot n mod 2 again has met the others in
round n + 1, so all have done with round n.

An all-reduce gives the bits that gloo's ring gives.  The tensor lies in p chunks, and chunk c starts at rank c - 1 and is added up by
ranks c - 2, c - 3, ... c in turn  [gloo: allreduce.cc, ring];  minima and maxima pass on NaN, as torch's do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from backend.comm.host.counters import Counters, counters_bytes
from planner.ir.sbp import ReduceOp

__all__ = ["SLOT_BYTES", "HostWire", "ceil_div", "chunk_length", "memory_bytes"]

SLOT_BYTES = 1 << 19
"""The most that a rank leaves at once: slots of a few ranks stay in a processor's cache."""

_SHARED_FROM_BYTES = 1 << 16
"""From here on more than two ranks each add up a part of a round and copy the others' parts, at the price of a second meeting."""

_GLOO_SEGMENT_BYTES = 1 << 20
_LINE_WORDS = 8
_MOST_VIEWS = 64

_INTO: dict[ReduceOp, Any] = {ReduceOp.SUM: torch.add, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum}


def memory_bytes(ranks: int, slot_bytes: int) -> int:
    """What the ranks of a communicator map."""
    return counters_bytes(ranks) + 2 * ranks * 64 + 2 * ranks * slot_bytes


def ceil_div(length: int, width: int) -> int:
    """Pieces of at most ``width`` that ``length`` takes."""
    return (length + width - 1) // width


def chunk_length(length: int, item_bytes: int, ranks: int) -> int:
    """Elements of a chunk of gloo's ring: an equal number of segments per rank, of at most 1 MiB, at least two."""
    largest_bytes = item_bytes * max(1, _GLOO_SEGMENT_BYTES // item_bytes)
    segments = max(ceil_div(length * item_bytes, largest_bytes), 2 * ranks)
    per_rank = ceil_div(segments, ranks)
    segment_bytes = ceil_div(length * item_bytes, per_rank * ranks)
    return per_rank * ceil_div(segment_bytes, item_bytes)


class HostWire:
    """A Wire (backend.comm.wires) of one rank, for tensors in the host's memory.

    Args:
        memory: memory_bytes(...) of zeros.   place: of this rank among ``ranks``.   lives, timeout_s: see Counters.
    """

    scatters = False

    def __init__(self, memory: Tensor, place: int, ranks: Sequence[int], lives: Sequence[int], timeout_s: float, slot_bytes: int) -> None:
        self.mapped_bytes = memory.nbytes
        self._place, self._parts, self._slot_bytes = place, len(ranks), slot_bytes
        first, second = counters_bytes(len(ranks)), counters_bytes(len(ranks)) + 2 * len(ranks) * 64
        self._counters = Counters(memory[:first], place, ranks, lives, timeout_s)
        self._rounds = memory[first:second].view(torch.int64).view(2, len(ranks), _LINE_WORDS).numpy()
        self._slots = memory[second:].view(2, len(ranks), slot_bytes)
        self._typed: dict[tuple[torch.dtype, int], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._turn = 0

    def _next(self, dtype: torch.dtype, length: int) -> tuple[Tensor, ...]:
        """The slots of the next round, by rank: their first ``length`` elements."""
        pair = self._typed.get((dtype, length))
        if pair is None:
            if len(self._typed) == _MOST_VIEWS:
                self._typed.clear()
            size = length * dtype.itemsize
            first, second = (tuple(slot[:size].view(dtype) for slot in turn.unbind()) for turn in self._slots.unbind())
            pair = self._typed[dtype, length] = first, second
        self._turn ^= 1
        return pair[self._turn]

    def _pieces(self, *tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """(where it starts, the piece of each tensor) per round."""
        length, most = tensors[0].numel(), self._slot_bytes // tensors[0].itemsize
        if length <= most:
            if length:
                yield 0, tensors
            return
        for start in range(0, length, most):
            yield start, tuple(tensor[start : start + most] for tensor in tensors)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, sent: Tensor | None = None) -> None:
        whole, into = tensor.view(-1), _INTO[op]
        chunk = chunk_length(whole.numel(), whole.itemsize, self._parts)
        for start, (piece, own) in self._pieces(whole, whole if sent is None else sent.view(-1)):
            slots = self._next(piece.dtype, len(piece))
            slots[self._place].copy_(own)
            self._counters.meet()
            if self._parts == 2:
                into(own, slots[1 - self._place], out=piece)
            elif piece.nbytes < _SHARED_FROM_BYTES:
                self._add_up(piece, slots, 0, len(piece), start, chunk, into)
            else:
                self._share(piece, slots, start, chunk, into)

    def _share(self, piece: Tensor, slots: tuple[Tensor, ...], start: int, chunk: int, into: Any) -> None:
        """Each rank adds up one part of the round; nobody else reads that part of its slot, so the sum goes there."""
        bounds = [len(piece) * part // self._parts for part in range(self._parts + 1)]
        spans = [slice(*pair) for pair in zip(bounds, bounds[1:], strict=False)]
        own = spans[self._place]
        self._add_up(piece, slots, own.start, own.stop, start, chunk, into)
        slots[self._place][own].copy_(piece[own])
        self._counters.meet()
        for part, span in enumerate(spans):
            if part != self._place:
                piece[span].copy_(slots[part][span])

    def _add_up(self, piece: Tensor, slots: tuple[Tensor, ...], low: int, high: int, start: int, chunk: int, into: Any) -> None:
        """Elements low to high of a round into ``piece``, each chunk in its order.  start: of the round in the whole tensor."""
        while low < high:
            number = (start + low) // chunk
            end = min(high, (number + 1) * chunk - start)
            target, order = piece[low:end], [(number - 1 - n) % self._parts for n in range(self._parts)]
            into(slots[order[0]][low:end], slots[order[1]][low:end], out=target)
            for other in order[2:]:
                into(target, slots[other][low:end], out=target)
            low = end

    def all_gather(self, gathered: Tensor, sent: Tensor) -> None:
        rows = gathered.view(self._parts, -1)
        rows[self._place].copy_(sent.view(-1))
        for _, (mine, *pieces) in self._pieces(sent.view(-1), *rows.unbind()):
            slots = self._next(mine.dtype, len(mine))
            slots[self._place].copy_(mine)
            self._counters.meet()
            for other, piece in enumerate(pieces):
                if other != self._place:
                    piece.copy_(slots[other])

    def all_to_all(self, received: Tensor, sent: Tensor, receive_lengths: Sequence[int], send_lengths: Sequence[int]) -> None:
        """Of each slot every reader has an equal share.  Lengths differ from pair to pair, so the first round says how many follow."""
        width = self._slot_bytes // self._parts // sent.itemsize
        outgoing, coming = torch.split(sent, list(send_lengths)), torch.split(received, list(receive_lengths))
        coming[self._place].copy_(outgoing[self._place])
        others = [other for other in range(self._parts) if other != self._place]
        wanted = max(1, ceil_div(max((send_lengths[other] for other in others), default=0), width))
        number, most = 0, 1
        while number < most:
            slots, at = self._next(sent.dtype, width * self._parts), number * width
            for other in others:
                part = outgoing[other][at : at + width]
                if len(part):
                    slots[self._place][other * width : other * width + len(part)].copy_(part)
            if number == 0:
                self._rounds[self._turn, self._place, 0] = wanted
            self._counters.meet()
            if number == 0:
                most = int(self._rounds[self._turn, :, 0].max())
            for other in others:
                part = coming[other][at : at + width]
                if len(part):
                    part.copy_(slots[other][self._place * width : self._place * width + len(part)])
            number += 1

    def reduce_scatter(self, reduced: Tensor, sent: Tensor, op: ReduceOp) -> None:
        raise NotImplementedError("ranks of a host exchange parts and add them up")  # scatters is False
