"""The search over shapes on a cluster of several kinds of node: every shape is worked out that a bound does not dismiss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from planner.ir.errors import OutOfMemory, Unsupported
from planner.parallelism.shape import Shape, with_next
from planner.solve.problem import NotFoundInTime
from planner.solve.time_limit import TimeLimit

__all__ = ["best_of_kinds"]


def best_of_kinds(
    candidates: Sequence[Shape],
    least_s: Callable[[Shape], float],
    work_out: Callable[[Shape, bool], tuple[float, float]],
    *,
    recompute: Sequence[str],
    gap: float,
    time_limit: TimeLimit,
    given_up: dict[Shape, float],
) -> tuple[Shape, float]:
    """(the best shape, a lower bound in seconds over all of them).

    Args:
        least_s: a bound on a shape.   work_out: as in planner.parallelism.shape_search.   recompute: what does not fit is tried with these, in turn.
        gap: a shape that could be better by at most this share of the best step is not worked out.
        given_up: is told the shapes of which no plan that was tried fits, with their bounds; the bound over all shapes leaves them out.

    Raises:
        OutOfMemory, Unsupported: no shape fits, or none can be planned.   NotFoundInTime: none was found in time.
    """
    waiting = sorted((least_s(shape), shape) for shape in candidates)
    worked: dict[Shape, float] = {}
    bounds: list[float] = []
    refused: list[OutOfMemory | Unsupported] = []
    best_s = inf
    while waiting and waiting[0][0] < best_s * (1 - gap) and not (worked and time_limit.is_up()):
        bound_s, shape = waiting.pop(0)
        try:
            worked[shape], proven_s = work_out(shape, False)
            bounds.append(max(bound_s, proven_s))
            best_s = min(best_s, worked[shape])
        except NotFoundInTime:
            if time_limit.is_cancelled and not worked:
                raise
            bounds.append(bound_s)
        except OutOfMemory as error:
            refused.append(error)
            given_up[shape] = bound_s
            if (recomputed := with_next(shape, recompute)) is not None:
                waiting = sorted([*waiting, (bound_s, recomputed)])
        except Unsupported as error:
            refused.append(error)
            if shape.recompute and (recomputed := with_next(shape, recompute)) is not None:  # so little cannot be kept
                waiting = sorted([*waiting, (bound_s, recomputed)])
    if not worked:
        if not refused:
            raise NotFoundInTime(
                f"the time, {time_limit.seconds:.3g} s, was up before any shape was worked out; give more seconds", min(bounds)
            )
        raise next((error for error in reversed(refused) if isinstance(error, OutOfMemory)), refused[-1])
    best = min(worked, key=lambda shape: worked[shape])
    return best, min(best_s, *bounds, *(bound_s for bound_s, _ in waiting[:1]))
