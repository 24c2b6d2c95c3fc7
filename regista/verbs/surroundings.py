"""What a verb is performed with besides its arguments: who watches its search, what can end it, what earlier ones have worked out.

On the command line there is nothing of it; a server sets it around each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.parallelism.memory import SearchMemory
    from planner.solve.time_limit import Cancel

__all__ = ["NOTHING", "Surroundings", "surrounded", "surroundings"]


def _tell_nobody(best_s: float, bound_s: float, seconds: float, shape: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """tell: called with the best objective and the lower bound of a search (seconds; infinite: none yet), the seconds since it began (0: not told)
    and the shape that was looked at.   cancel: ends the search.   memory_of: what searches of a model have worked out.
    columns: width of tables; None: as the terminal.
    """

    tell: Callable[[float, float, float, str], None] = _tell_nobody
    cancel: Cancel | None = None
    memory_of: Callable[[str], SearchMemory | None] = lambda model: None
    columns: int | None = None


NOTHING = Surroundings()
_SURROUNDINGS: ContextVar[Surroundings] = ContextVar("regista-surroundings", default=NOTHING)


def surroundings() -> Surroundings:
    """Those of the verb that is performed."""
    return _SURROUNDINGS.get()


@contextmanager
def surrounded(by: Surroundings) -> Iterator[None]:
    """Within the block verbs are performed with these."""
    token = _SURROUNDINGS.set(by)
    try:
        yield
    finally:
        _SURROUNDINGS.reset(token)
