"""When a search has to end, by a clock that its caller may choose: a search and its parts ask one value.

began             now                  end
  |---- elapsed ---|---- remaining -----|          no part begins once nothing remains; one that has begun may end later
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

__all__ = ["NO_LIMIT", "Clock", "TimeLimit"]

Clock = Callable[[], float]
"""Seconds since a moment of its own, which never go back."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """``seconds`` from the moment at which the value is made; infinite: no limit."""

    seconds: float = inf
    clock: Clock = perf_counter
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_began_s", self.clock())

    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self._began_s

    def remaining_s(self) -> float:
        """Seconds until the end; negative after it."""
        return self.seconds - self.elapsed_s()

    def is_up(self) -> bool:
        """Whether no further part may begin."""
        return self.remaining_s() <= 0

    def part(self, seconds: float) -> TimeLimit:
        """The limit of a part that begins now: ``seconds``, or what remains of the whole where that is less."""
        return TimeLimit(min(seconds, self.remaining_s()), self.clock)


NO_LIMIT = TimeLimit()
