"""Buckets: the tensors of one dtype of a collective as one flat tensor that is sent and one that is received.

    tensors of a task       a: 4 x 2        b: 3
    P -> S(0), 2 ranks      sent     | a[:2] b[:2] | a[2:] b[2:] |      for neighbour 0, for neighbour 1
                            received | a[:2] b[:2] | a[:2] b[:2] |      from neighbour 0, from neighbour 1 (seen from rank 0)

Every length follows from the shapes, so a Bucket is worked out once, before the first act; what an act then takes beside its registers is
a number of the Bucket too, and lies in backend.comm.scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate as running_sum
from itertools import pairwise
from math import prod
from typing import Literal

import torch

from planner.ir.sbp import Broadcast, Partial, Sbp, Split, part_of

__all__ = ["Bucket", "Needs", "Use", "bucket_of", "largest"]

Shape = tuple[int, ...]

Use = Literal["sent", "received"]

Needs = Mapping[Use, int]
"""Bytes of scratch that an act takes, by use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One rank's part in one bucket.  All lengths count elements.

    places: of the tensors among the task's values.   extents: shape per tensor that the ranks of the group hold together.
    cuts: (tensor, dim, offset, length) of the pieces in the order they are sent; none where whole tensors are.
    send_lengths, receive_lengths: per neighbour.   own_length: of all that is sent.
    pieces: neighbour -> shapes of what comes from it.   spans: neighbour -> where that begins and ends in what is received.
    scratch_sent: taken to put the pieces together, padding included; 0: a single tensor lies as it is sent.
    scratch_received: taken for what comes.   straight: none is, as what comes lies like the result.
    """

    places: tuple[int, ...]
    dtype: torch.dtype
    extents: tuple[Shape, ...]
    cuts: tuple[tuple[int, int, int, int], ...] = ()
    send_lengths: tuple[int, ...] = ()
    receive_lengths: tuple[int, ...] = ()
    own_length: int = 0
    pieces: tuple[tuple[Shape, ...], ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    scratch_sent: int = 0
    scratch_received: int = 0
    straight: bool = False

    @property
    def needs(self) -> Needs:
        size = self.dtype.itemsize
        return {"sent": self.scratch_sent * size, "received": self.scratch_received * size}


def bucket_of(src: Sbp, dst: Sbp, parts: int, index: int, places: Sequence[int], dtype: torch.dtype, extents: Sequence[Shape]) -> Bucket:
    """The Bucket of one boxing step along one axis, on one rank.

    Args:
        parts, index: size of the axis and the rank's coordinate on it.
        places, extents: see Bucket.

    Returns:
        without lengths where nothing is put together: a local step, an all-reduce (it has the shape of its result), an axis of one rank.
    """
    quiet = Bucket(places=tuple(places), dtype=dtype, extents=tuple(extents))
    if src == dst or parts == 1:
        return quiet
    match src, dst:
        case Split(dim), Broadcast():
            return _gathered(quiet, dim, parts, index)
        case Partial(), Split(dim):
            mine = tuple(_part(extent, dim, parts, index) for extent in extents)
            return _swapped(quiet, dim, parts, tuple(extents), (mine,) * parts)
        case Split(dim), Split(other) if dim == other:
            return _shifted(quiet, src, dst, parts, index)
        case Split(src_dim), Split(dst_dim):
            held = tuple(_part(extent, src_dim, parts, index) for extent in extents)
            mine = tuple(_part(extent, dst_dim, parts, index) for extent in extents)
            return _swapped(quiet, dst_dim, parts, held, tuple(tuple(_part(m, src_dim, parts, r) for m in mine) for r in range(parts)))
        case _:
            return quiet


def _gathered(quiet: Bucket, dim: int, parts: int, index: int) -> Bucket:
    """S(dim) -> B.  gloo gathers equal lengths only: who sends less pads it in scratch."""
    pieces = tuple(tuple(_part(extent, dim, parts, r) for extent in quiet.extents) for r in range(parts))
    lengths = [sum(map(prod, shapes)) for shapes in pieces]
    width, alone = max(lengths), len(quiet.places) == 1
    straight = alone and dim == 0 and min(lengths) == width
    return replace(
        quiet,
        send_lengths=(width,) * parts,
        receive_lengths=(width,) * parts,
        own_length=lengths[index],
        pieces=pieces,
        spans=tuple((r * width, r * width + length) for r, length in enumerate(lengths)),
        scratch_sent=0 if alone and lengths[index] == width else width,
        scratch_received=0 if straight else parts * width,
        straight=straight,
    )


def _swapped(quiet: Bucket, dim: int, parts: int, held: tuple[Shape, ...], pieces: tuple[tuple[Shape, ...], ...]) -> Bucket:
    """What this rank holds is cut along ``dim``, and part r goes to neighbour r."""
    cuts = tuple((number, dim, *part_of(shape[dim], parts, r)) for r in range(parts) for number, shape in enumerate(held))
    sent = tuple(sum(prod(_part(shape, dim, parts, r)) for shape in held) for r in range(parts))
    received = tuple(sum(map(prod, shapes)) for shapes in pieces)
    return replace(
        quiet,
        cuts=cuts,
        send_lengths=sent,
        receive_lengths=received,
        own_length=sum(sent),
        pieces=pieces,
        spans=tuple(pairwise(running_sum(received, initial=0))),
        # The parts of one tensor along its first dim lie one behind the other already.
        scratch_sent=0 if len(held) == 1 and dim == 0 else sum(sent),
        scratch_received=sum(received),
    )


def _shifted(quiet: Bucket, src: Split, dst: Split, parts: int, index: int) -> Bucket:
    """S(dim)+s -> S(dim)+t: all that this rank holds goes t - s places further."""
    by, dim = dst.turn - src.turn, src.dim
    held = tuple(_part(extent, dim, parts, src.part_at(index, parts)) for extent in quiet.extents)
    coming = tuple(_part(extent, dim, parts, dst.part_at(index, parts)) for extent in quiet.extents)
    to, source, sent, received = (index + by) % parts, (index - by) % parts, sum(map(prod, held)), sum(map(prod, coming))
    lengths = tuple(received if r == source else 0 for r in range(parts))
    return replace(
        quiet,
        send_lengths=tuple(sent if r == to else 0 for r in range(parts)),
        receive_lengths=lengths,
        own_length=sent,
        pieces=tuple(coming if r == source else () for r in range(parts)),
        spans=tuple(pairwise(running_sum(lengths, initial=0))),
        scratch_sent=0 if len(held) == 1 else sent,
        scratch_received=received,
    )


def _part(shape: Shape, dim: int, parts: int, index: int) -> Shape:
    return (*shape[:dim], part_of(shape[dim], parts, index)[1], *shape[dim + 1 :])


def largest(needs: Iterable[Needs]) -> Needs:
    """What serves each of these acts, one at a time."""
    largest_bytes: dict[Use, int] = {"sent": 0, "received": 0}
    for each in needs:
        for use, size_bytes in each.items():
            largest_bytes[use] = max(largest_bytes[use], size_bytes)
    return largest_bytes
