"""Within how many bytes the layouts are searched next, when a Plan holds more than the search counted.

The search counts what lies in Regsts for certain; boxing buffers, workspace and what waits between acts are known once the Plan is made:

    needed by the Plan   |======== counted ========|== not counted ==|
    memory of a device   |=================================|
    next limit           |====== counted - too much ======|

Less than the least that any layout holds cannot be asked for.  Where even that, with most of what was not counted, is more than the memory, the
shape is given up: a further try costs as much as the first and more (GPT-3 on 128 GPUs: 10 to 30 s), and what is not counted hardly shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf

__all__ = ["Narrowing"]

_STAYS = 0.75
"""Share of what was not counted that stays, whatever the limit: from one try to the next it shrank by 15 % at most [GPT-3, 128 A100, 3 shapes]."""
_SPARE = 1.02


@dataclass
class Narrowing:
    """The limits of one shape's tries, in bytes of a device.

    memory: what a device has.   first: the limit once memory is known to bind.   least_of: what every layout holds at some time, of what is
    counted (asked for once, if at all).   limit: of the next try; infinite: none.
    """

    memory: float
    first: float
    least_of: Callable[[], float]
    limit: float = inf
    _too_small: float = 0.0
    _counted: float = 0.0
    _uncounted: float = inf

    @cached_property
    def least(self) -> float:
        return self.least_of()

    def nothing_fits(self) -> bool:
        """No layout holds as little as the limit: ask for more; False: no more can be asked for."""
        if self.limit >= self.memory:
            return False
        self._too_small = self.limit
        self.limit = (self._too_small + self._counted) / 2
        return True

    def too_large(self, needed: float, held: float) -> bool:
        """The Plan needs too much, its layouts hold ``held`` of what is counted: ask for less; False: that would not help."""
        if self.limit == inf:
            self.limit = self.first
            return True
        self._counted = min(self.limit, held)
        excess = needed - self.memory
        self._uncounted = min(self._uncounted, needed - self._counted)
        wished = self._counted - excess * _SPARE
        if wished < self.least:
            if self.least + _STAYS * self._uncounted > self.memory:
                return False
            self._too_small = max(self._too_small, self.least)
        self.limit = min(max(wished, (self._too_small + self._counted) / 2), self.memory)
        return True
