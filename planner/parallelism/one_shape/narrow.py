"""The next memory limit of the search, after a Plan needed more bytes than the search counted.

The search counts the bytes that are certainly in Regsts.  Boxing buffers, workspace and blocks between acts are known only from the Plan:

    needed by the Plan   |======== counted ========|== not counted ==|
    memory of a device   |=================================|
    next limit           |====== counted - excess ======|

The limit is never below the smallest peak of any layout.  If that peak and most of the uncounted bytes exceed the memory, the shape is given up:
another try takes at least as long as the first (GPT-3 on 128 GPUs: 10 to 30 s), and the uncounted bytes hardly shrink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

__all__ = ["LimitSearch"]

_STAYS = 0.75
"""Share of the uncounted bytes that remains at any limit: they shrank by at most 15 % from one try to the next [GPT-3, 128 A100, 4 shapes]."""
_SPARE = 1.02


@dataclass
class LimitSearch:
    """The limits of one shape's tries, in bytes of a device.

    memory_bytes: what a device has.   first_bytes: the first finite limit, once memory is known to bind.
    limit_bytes: of the next try; infinite: no limit.
    """

    memory_bytes: float
    first_bytes: float
    limit_bytes: float = inf
    _too_small_bytes: float = 0.0
    _counted_bytes: float = 0.0
    _uncounted_bytes: float = inf
    _least_bytes: float | None = None

    def raise_limit(self) -> bool:
        """After a try without a layout within the limit: raise it; False if it is the device's memory already."""
        if self.limit_bytes >= self.memory_bytes:
            return False
        self._too_small_bytes = self.limit_bytes
        self.limit_bytes = (self._too_small_bytes + self._counted_bytes) / 2
        return True

    def lower_limit(self, needed_bytes: float, held_bytes: float, least_bytes_of: Callable[[], float]) -> bool:
        """After a Plan that needs too much, with ``held_bytes`` counted: lower the limit; False if no lower limit would help.

        Args:
            least_bytes_of: the smallest counted peak of any layout, asked for once, if at all.
        """
        if self.limit_bytes == inf:
            self.limit_bytes = self.first_bytes
            return True
        self._counted_bytes = min(self.limit_bytes, held_bytes)
        if not self._counted_bytes:
            return False  # an evaluation may hold nothing that is counted
        excess_bytes = needed_bytes - self.memory_bytes
        self._uncounted_bytes = min(self._uncounted_bytes, needed_bytes - self._counted_bytes)
        wanted_bytes = self._counted_bytes - excess_bytes * _SPARE
        if wanted_bytes < 0 and _STAYS * self._uncounted_bytes > self.memory_bytes:
            return False  # whatever the least counted peak is
        if self._least_bytes is None:
            self._least_bytes = least_bytes_of()
        if wanted_bytes < self._least_bytes:
            if self._least_bytes + _STAYS * self._uncounted_bytes > self.memory_bytes:
                return False
            self._too_small_bytes = max(self._too_small_bytes, self._least_bytes)
        self.limit_bytes = min(max(wanted_bytes, (self._too_small_bytes + self._counted_bytes) / 2), self.memory_bytes)
        return True
