"""The bottleneck bound (planner.search.bounds.bottleneck) for layouts that were found.

A second process works it out, where a core is free, while the first lowers the Plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.search import FoundLayouts
from planner.solve.beside import Beside
from planner.solve.problem import Ints, Watch
from planner.solve.time_limit import TimeLimit

__all__ = ["CloserBound"]


@dataclass(slots=True)
class CloserBound:
    """The bottleneck bound of one choice of layouts.

    found: the choice.   watch: if it is given, an interrupt (Ctrl-C) leaves its bound as it is.
    """

    found: FoundLayouts
    time_limit: TimeLimit
    watch: Watch | None
    _beside: Beside[tuple[float, float, Ints]] = field(init=False)

    def __post_init__(self) -> None:
        self._beside = Beside(self._work, lambda: self.time_limit.is_cancelled)

    def _work(self) -> tuple[float, float, Ints]:
        closer = self.found.bounded_by_bottleneck(self.time_limit)
        return closer.bound_s, closer.objective_s, closer.choice

    def start(self) -> bool:
        """Have a second process do it; False: there may be none."""
        return self._beside.start()

    def stop(self) -> None:
        """End the second process."""
        self._beside.stop()

    def result(self) -> FoundLayouts:
        """The choice with that bound, or a quicker one that the bound found; from the second process, or worked out here."""
        try:
            bound_s, objective_s, choice = self._beside.result()
        except KeyboardInterrupt:
            if self.watch is None:
                raise  # without a watch, the caller handles the interrupt
            return self.found
        closer = replace(self.found, bound_s=bound_s)
        return replace(closer, objective_s=objective_s, choice=choice) if objective_s < self.found.objective_s else closer
