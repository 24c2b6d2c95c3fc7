"""When a search has to end, by a clock that its caller may choose: a search and its parts ask one value.

began             now                  end
  |---- elapsed ---|---- remaining -----|          no part begins once nothing remains; one that has begun may end later

A caller who does not know the end beforehand gives a Cancel for a clock: nothing remains from the moment at which it is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from threading import Event
from time import perf_counter

__all__ = ["NO_LIMIT", "Cancel", "Clock", "TimeLimit"]

Clock = Callable[[], float]
"""Seconds since a moment of its own, which never go back."""


class Cancel:
    """A clock that ends the searches that are given it, from any thread: they take what they have found, as at the end of their time.

    >>> stop = Cancel()
    >>> limit = TimeLimit(inf, stop)
    >>> stop.cancel()
    >>> limit.is_up()
    True
    """

    def __init__(self, clock: Clock = perf_counter) -> None:
        self._clock, self._cancelled = clock, Event()

    def __call__(self) -> float:
        return self._clock()

    def cancel(self) -> None:
        """End the searches; a second call changes nothing."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """``seconds`` from the moment at which the value is made; infinite: no limit, unless the clock is a Cancel and is cancelled."""

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
        return -inf if self.is_cancelled else self.seconds - self.elapsed_s()

    @property
    def is_cancelled(self) -> bool:
        """Whether the search was ended from outside."""
        return isinstance(self.clock, Cancel) and self.clock.is_cancelled

    def is_up(self) -> bool:
        """Whether no further part may begin."""
        return self.remaining_s() <= 0

    def part(self, seconds: float) -> TimeLimit:
        """The limit of a part that begins now: ``seconds``, or what remains of the whole where that is less."""
        return TimeLimit(min(seconds, self.remaining_s()), self.clock)


NO_LIMIT = TimeLimit()
