"""The protocol of readers, and files that are read in place and refused when they change under a run."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.data.describe import Source
from planner.ir.errors import InvalidFile
from planner.ir.tensor import TensorType
from planner.lower.data_actors.loading import RawTensor

__all__ = ["Bytes", "OpenFile", "Reader", "runs"]

Bytes = NDArray[np.uint8]


@runtime_checkable
class Reader(Protocol):
    """An opened source.  ``read`` is what a SOURCE does, ``prepare`` what a PREPARE does; a sample is known by its number alone.

    raw: what ``read`` gives per sample.   made: what ``prepare`` gives per sample, one per batch input.
    fingerprint: changes when the data does; all ranks of a run must see the same.
    """

    num_samples: int
    raw: tuple[RawTensor, ...]
    made: tuple[TensorType, ...]
    fingerprint: str

    @property
    def source(self) -> Source: ...

    def read(self, samples: Sequence[int], raw: Sequence[int]) -> list[Tensor]:
        """The raw tensors numbered ``raw`` of these samples, each [len(samples), *shape].

        Raises:
            InvalidFile: the data is no longer what was opened.
        """
        ...

    def prepare(self, raw: dict[int, Tensor], inputs: Sequence[int]) -> list[Tensor]:
        """Batch inputs numbered ``inputs``, each [samples, *shape], from the raw tensors that they are made of.

        Raises:
            InvalidFile: what was read cannot be understood.
        """
        ...


class OpenFile:
    """A file of known size, read in place by any thread.

    It is not mapped into memory: a mapped file that somebody cuts short ends the process by a signal, while a short read can say what is
    missing.  The one copy that reading makes goes to where the data is wanted, so mapping would save nothing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        try:
            self._number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidFile(f"data file {self.path} cannot be read: {error.strerror}") from None
        weakref.finalize(self, os.close, self._number)
        self.size_bytes = os.fstat(self._number).st_size

    def read_into(self, buffer: Bytes, offset_bytes: int) -> None:
        """Fill ``buffer`` (uint8, contiguous).

        Raises:
            InvalidFile: the file ends before.
        """
        view, done = buffer.data.cast("B"), 0
        while done < len(view):
            count = os.preadv(self._number, [view[done:]], offset_bytes + done)
            if not count:
                now = os.fstat(self._number).st_size
                raise InvalidFile(
                    f"data file {self.path} has {now} bytes, it had {self.size_bytes} when it was opened, and bytes {offset_bytes} .. "
                    f"{offset_bytes + len(view) - 1} are wanted; leave data files alone while a run reads them"
                )
            done += count


def runs(samples: Sequence[int]) -> list[tuple[int, int, int]]:
    """Neighbours read at once: (place, first sample, count).

    >>> runs([4, 5, 6, 9])
    [(0, 4, 3), (3, 9, 1)]
    """
    spans: list[tuple[int, int, int]] = []
    for place, sample in enumerate(samples):
        if spans and sample == spans[-1][1] + spans[-1][2]:
            spans[-1] = (*spans[-1][:2], spans[-1][2] + 1)
        else:
            spans.append((place, sample, 1))
    return spans
