"""Which of two processes works out what: a byte per piece of work, in memory that both see."""

from __future__ import annotations

import mmap
from enum import IntEnum

__all__ = ["Claims", "Owner"]


class Owner(IntEnum):
    NOBODY = 0
    FIRST = 1
    SECOND = 2


class Claims:
    """Whoever begins a piece of work claims it.  If both claim it at the same moment, both work it out, to the same end."""

    def __init__(self, size: int) -> None:
        self._owner = mmap.mmap(-1, max(size, 1))

    def owner(self, place: int) -> Owner:
        return Owner(self._owner[place])

    def claim(self, place: int, owner: Owner) -> bool:
        """False: it is another's."""
        if self._owner[place] not in (Owner.NOBODY, owner):
            return False
        self._owner[place] = owner
        return True
