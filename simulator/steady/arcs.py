"""The arcs of a marked graph as columns of arrays, and functions that make many arcs at once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArcKind", "ArcColumns", "Ints", "Reals", "counted", "interleaved", "ints", "plain"]

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


class ArcKind(IntEnum):
    """Why one act waits for another."""

    DATA = 0
    QUOTA = 1
    STATE = 2
    STREAM = 3
    CHOICE = 4
    """Next on a stream without an order, as simulated."""
    TASK = 5
    """The acts of one task, one after another."""


class ArcColumns(NamedTuple):
    """One row per arc; the columns are those of simulator.steady.graph.MarkedGraph, with the message's latency for its weight."""

    src: Ints
    dst: Ints
    tokens: Ints
    latency_s: Reals
    kind: Ints
    regst: Ints
    block: Ints
    into: Ints


def ints(values: Sequence[int]) -> Ints:
    """An array of whole numbers; ``values`` may be empty."""
    return np.array(values, dtype=np.int64)


def counted(sizes: Ints) -> tuple[Ints, Ints]:
    """Row number r repeated sizes[r] times, and beside it the numbers 0 .. sizes[r] - 1."""
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(len(row)) - (np.cumsum(sizes) - sizes)[row]


def plain(src: Ints, dst: Ints, tokens: Ints, kind: Ints) -> ArcColumns:
    """Arcs of a stream, which have no Regst and no latency."""
    nothing = np.full(len(src), -1)
    return ArcColumns(src, dst, tokens, np.zeros(len(src)), kind, nothing, nothing, dst)


def interleaved(ready: ArcColumns, free: ArcColumns, blocks: Ints) -> ArcColumns:
    """The arcs of each pair of actors together: first those from producer to consumer, then those back.

    Rows of both stand by pair and then by block, free.block = 0, 1, ..;  blocks: how many of them a row's pair has.
    """
    size = len(blocks)
    at = np.arange(size) + (np.arange(size) - free.block)  # the rows of the pairs before count twice
    order = np.empty(2 * size, dtype=np.int64)
    order[at], order[at + blocks] = np.arange(size), np.arange(size) + size
    return ArcColumns(*(np.concatenate(columns)[order] for columns in zip(ready, free, strict=True)))
