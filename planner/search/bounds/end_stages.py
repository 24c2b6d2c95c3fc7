"""Lower bounds on the step of a pipeline from its stages, each searched by itself; no layout of the whole is searched.

    step  =  sum_i t_i + (m - 1) max t_i + max u_i
         >=  sum of min t_i over the other stages  +  min [ m t_b ]                              of stage b               (0)
         >=  sum of min t_i over the other stages  +  min [ m t_b ]  +  min [ t_c + u_c ]        of stages b and c        (1)
         >=  sum of min t_i over the other stages  +  min [ m t_b + u_b ]                        of stage b               (2)

The minima are over layouts that fit the memory of a device, by the Lagrangian relaxation of planner.search.bounds.ascent; what enters a stage costs
nothing in any layout.  b and c are the first stage, which holds most micro-batches at once, and the last, which has the head: as a rule one of the
two is the slowest.  Stages between them that are alike are searched once, with the fewest micro-batches that one of them holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from planner.search.bounds.ascent import StageRelaxation, ascend
from planner.search.bounds.pieces import stages_alike
from planner.search.model import SearchModel
from planner.solve.time_limit import NO_LIMIT, TimeLimit
from planner.stages import Staged

__all__ = ["end_stage_bounds"]

_ROUNDS, _PATIENCE = 8, 2


def end_stage_bounds(
    staged: Staged, model_of: Callable[[int], SearchModel], memory_bytes: float, time_limit: TimeLimit = NO_LIMIT
) -> Iterator[float]:
    """(0), (1) and (2) for the first and the last stage, rising, in seconds.

    Args:
        staged: of at least two stages.
        model_of: stage -> the search model of what lies on it, with demands of memory (planner.search.bounds.pieces.stage_part); of stages
            that are alike, the later one has the looser demands.
        memory_bytes: of a device.

    Raises:
        Unsupported: a stage allows no choice.   NotFoundInTime: what was given before holds.
    """
    first, last = 0, staged.num_stages - 1
    models = {end: model_of(end) for end in (first, last)}
    often = models[first].micro_batches

    def least_s(model: SearchModel, times: float, once: float) -> float:
        return _least_s(model, times, once, memory_bytes, time_limit)

    slow_s = {end: least_s(model, often, 0.0) for end, model in models.items()}
    slow = max(slow_s, key=slow_s.__getitem__)
    other = last if slow == first else first
    between_s = sum(len(alike) * least_s(model_of(alike[-1]), 1.0, 0.0) for alike in stages_alike(staged, range(1, last)))
    others_s = between_s + slow_s[other] / often
    bound = others_s + slow_s[slow]  # (0)
    yield bound
    bound = max(bound, between_s + slow_s[slow] + least_s(models[other], 1.0, 1.0))  # (1)
    yield bound
    yield max(bound, others_s + least_s(models[slow], often, 1.0))  # (2)


def _least_s(model: SearchModel, times: float, once: float, memory_bytes: float, time_limit: TimeLimit) -> float:
    """A lower bound on  times t + once u  of a stage within its memory."""
    weighted = model.weighted(lambda _, count: times / model.micro_batches if count > 1 else once)
    relaxation = StageRelaxation(weighted, np.zeros(len(weighted.names), dtype=np.int64), 1, memory_bytes)
    rounds = ascend(relaxation, np.zeros(1), memory_bytes, _ROUNDS, time_limit, _PATIENCE)
    return max((relaxed.bound for relaxed, _, _ in rounds), default=0.0)
