"""The bottleneck bound (planner.search.bounds.bottleneck) for layouts that were found, or for an earlier choice, while layouts are searched.

A second process works it out, where a core is free, while the first searches or lowers the Plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.search import FoundLayouts
from planner.solve.beside import Beside
from planner.solve.problem import Ints, Watch
from planner.solve.time_limit import TimeLimit

__all__ = ["CloserBound", "LaterBounds", "OtherBound"]


@dataclass(slots=True)
class CloserBound:
    """The bottleneck bound of one choice of layouts.

    found: the choice.   watch: if it is given, an interrupt (Ctrl-C) leaves its bound as it is.   gap: share of its step that may stay unproven.
    """

    found: FoundLayouts
    time_limit: TimeLimit
    watch: Watch | None
    gap: float = 0.0
    _beside: Beside[tuple[float, float, Ints]] = field(init=False)

    def __post_init__(self) -> None:
        self._beside = Beside(self._work, lambda: self.time_limit.is_cancelled)

    def _work(self) -> tuple[float, float, Ints]:
        closer = self.found.bounded_by_bottleneck(self.time_limit, gap=self.gap)
        return closer.bound_s, closer.objective_s, closer.choice

    def start(self) -> bool:
        """Have a second process do it; False: there may be none."""
        return self._beside.start()

    def serves(self, other: FoundLayouts) -> bool:
        """Whether the bound of another choice would be nearly the same: it is one of the same problem, with the same slowest stage."""
        model = self.found.model
        slowest = [model.slowest_stages(found.choice)[0] for found in (self.found, other)]
        return model.problem.edges is other.model.problem.edges and slowest[0] == slowest[1]

    def stop(self) -> None:
        """End the second process."""
        self._beside.stop()

    def result(self, meanwhile: Callable[[], bool] = lambda: False) -> FoundLayouts:
        """The choice with that bound, or a quicker one that the bound found; from the second process, or worked out here.

        Args:
            meanwhile: does a piece of other work while the second process is waited for; False: there is none.
        """
        try:
            bound_s, objective_s, choice = self._beside.result(meanwhile)
        except KeyboardInterrupt:
            if self.watch is None:
                raise  # without a watch, the caller handles the interrupt
            return self.found
        closer = replace(self.found, bound_s=bound_s)
        return replace(closer, objective_s=objective_s, choice=choice) if objective_s < self.found.objective_s else closer


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBound:
    """A lower bound on the plans of a shape that is worked out elsewhere meanwhile.

    bound_s: waits for it; in seconds.   known_s: it, if it is known by now; None: it is not.
    gap: share of the step that may stay unproven: where that is reached, no closer bound is worked out.
    meanwhile: does a piece of work that will be needed, while a closer bound is waited for; False: there is none.
    found: called with the step in seconds of an earlier choice, and of the one that is lowered.
    """

    bound_s: Callable[[], float]
    gap: float
    known_s: Callable[[], float | None] = lambda: None
    meanwhile: Callable[[], bool] = lambda: False
    found: Callable[[float], None] = lambda _: None


@dataclass(slots=True)
class LaterBounds:
    """The bound of the choice that is lowered, where it comes later: from elsewhere (``other``), or from a second process.

    closer: of that choice; its second process runs where it is known to be needed.
    """

    other: OtherBound | None
    time_limit: TimeLimit
    watch: Watch | None
    closer: CloserBound | None = None
    _ahead: CloserBound | None = None
    """Of an earlier choice, while layouts are searched."""

    def begin(self, standing: FoundLayouts) -> None:
        """Have a second process bound the slowest stages of an earlier choice: they are mostly those of what the search will find."""
        self.stop()
        if self.other is not None:
            self.other.found(standing.objective_s)
        if standing.multipliers and (self.other is None or self._leaves_too_much(self.other, standing)):
            ahead = self._closer_of(standing)
            self._ahead = ahead if ahead.start() else None

    def _closer_of(self, found: FoundLayouts) -> CloserBound:
        return CloserBound(found, self.time_limit, self.watch, 0.0 if self.other is None else self.other.gap)

    def _leaves_too_much(self, other: OtherBound, found: FoundLayouts) -> bool:
        known_s = other.known_s()
        return known_s is not None and known_s < found.objective_s * (1 - other.gap)

    def of(self, found: FoundLayouts) -> FoundLayouts:
        """The choice that will be lowered: with its bound, if there is no second process."""
        if self.other is not None:
            self.other.found(found.objective_s)
        if self._ahead is not None and self._ahead.serves(found):
            self.closer, self._ahead = self._ahead, None
            self.closer.found = found
            return found
        self.stop()
        closer = self._closer_of(found)
        if self.other is None and not closer.start():
            return closer.result()
        self.closer = closer
        self.look()
        return found

    def look(self) -> None:
        """Start the closer bound if the other one is known by now and too low."""
        if self.closer is not None and self.other is not None and self._leaves_too_much(self.other, self.closer.found):
            self.closer.start()

    def stop(self) -> None:
        """End the second processes."""
        for bound in (self.closer, self._ahead):
            if bound is not None:
                bound.stop()
        self.closer = self._ahead = None
