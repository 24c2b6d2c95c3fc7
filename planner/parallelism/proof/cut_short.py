"""A search that its time limit ended before it was done: what is proven about the plan that it had by then, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.plan import Search

__all__ = ["CutShort", "SearchCutShort", "check_search"]

_LEAST_GAP = 0.02
"""A smaller gap is not told: the search over shapes leaves 1 % unproven anyway."""


class SearchCutShort(UserWarning):
    """A time limit ended a search whose plan may be far from the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """seconds: of the limit.   step_s: of the plan that was found.   bound_s: no plan takes less; 0: nothing is proven."""

    seconds: float
    step_s: float
    bound_s: float

    def __str__(self) -> str:
        if self.bound_s > 0:
            times = self.step_s / self.bound_s
            least = f"the best plan takes at least {1 / times:.0%} of this one's time, so it may be {times:.3g} times as quick"
        else:
            least = "nothing is proven about how much quicker the best plan is"
        return (
            f"the search was cut short by its {self.seconds:g} seconds: {least}; "
            "give it more (--seconds), or search when the machine is less busy"
        )


def check_search(search: Search, seconds: float, elapsed_s: float, *, share: float = 1.0) -> CutShort | None:
    """What a limit of so many seconds left unproven; None: nothing that matters.

    Args:
        share: of the seconds, which one part of the search may take.   elapsed_s: what all took; if less than that share, nothing was cut.
    """
    if elapsed_s < share * seconds or search.objective_s - search.lower_bound_s <= _LEAST_GAP * search.objective_s:
        return None
    return CutShort(seconds=seconds, step_s=search.objective_s, bound_s=search.lower_bound_s)
