"""Work that is done once per array of a problem.

The layers of a model share their arrays, so a large problem holds few different ones, and to hash each time what they contain would cost more
than the work that it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["PerArray"]

T = TypeVar("T")


class PerArray(Generic[T]):
    """What was worked out for each array, by the array's identity.

    Every array that was asked about is held, so no other can come to lie at its address.  An array must not change after it was asked about.
    """

    def __init__(self) -> None:
        self._results: dict[int, tuple[NDArray[np.float64], T]] = {}

    def of(self, array: NDArray[np.float64], work: Callable[[NDArray[np.float64]], T]) -> T:
        """``work(array)``, of the first call for this very array."""
        entry = self._results.get(id(array))
        if entry is None:
            entry = self._results[id(array)] = (array, work(array))
        return entry[1]
