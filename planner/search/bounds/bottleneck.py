"""A lower bound on the time of a step if stages are unequal; the objective of the search itself uses the mean of the stages.

    step  =  sum_i t_i + (m - 1) max t_i + max u_i   >=   sum_i t_i + (m - 1) t_b + u_c          for any stages b and c             (1)

If b and c are the slowest stages of a good choice, the minimum of the right side is nearly the time of that choice.  A gap remains only if a
faster stage b or c would make another stage the slowest.

Without a choice, that of the Lagrangian relaxation of memory serves, at multipliers that the pieces give         (2)  -> whole_model_bounds
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.search.bounds.ascent import StageRelaxation, ascend
from planner.search.model import SearchModel
from planner.solve import Problem, solve_exactly
from planner.solve.problem import Floats, Ints
from planner.solve.time_limit import NO_LIMIT, TimeLimit

__all__ = ["ROUNDS", "bottleneck_bound", "whole_model_bounds"]

ROUNDS, _FIRST_ROUNDS = 8, 5
"""Most multipliers that are tried for (1), and for the relaxation from whose choice (2) begins."""
_PATIENCE = 2
"""Rounds in vain after which either ends."""
_CLOSE = 3e-3
"""Share of the relaxation's optimum that may stay unproven; the bound is valid in any case."""


def bottleneck_bound(
    model: SearchModel,
    choice: Ints,
    *,
    s_per_byte: Sequence[float] = (),
    memory_bytes: float = float("inf"),
    time_limit: TimeLimit = NO_LIMIT,
    enough_s: float = np.inf,
    rounds: int = ROUNDS,
) -> tuple[float, Ints]:
    """(1) for the slowest stages of a choice.

    Args:
        s_per_byte: per stage, the Lagrange multiplier of memory for the search's own objective, from which those of (1) are searched; empty:
            memory does not bind.   memory_bytes: of a device.
        time_limit: once it is up, the solver stops with the bound that it has.   enough_s: a bound above which no higher one is looked for.
        rounds: most multipliers that are tried.

    Returns:
        (lower bound on the step in seconds, the choice that gave it, which need not fit in memory).

    Raises:
        NotFoundInTime: the solver had no choice in time.
    """
    micro, weighted = _weighted(model, choice)
    if not s_per_byte:
        relaxed = solve_exactly(weighted.without_limit(), seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock)
        return relaxed.lower_bound, relaxed.choice
    best, best_choice = -np.inf, choice
    for bound, found in _bottleneck_bounds(model, micro, weighted, np.array(s_per_byte, dtype=float), memory_bytes, time_limit, rounds):
        if bound > best:
            best, best_choice = bound, found
        if best >= enough_s:
            break
    return best, best_choice


def whole_model_bounds(
    model: SearchModel, *, s_per_byte: Sequence[float], memory_bytes: float, time_limit: TimeLimit = NO_LIMIT
) -> Iterator[float]:
    """(2): lower bounds on the step of all plans of one shape within memory, in seconds, each at least the one before.

    No choice that fits is looked for.

    Args:
        s_per_byte: per stage, an estimate of the multiplier of memory, 0 where nothing is known; empty: memory does not bind.
        memory_bytes: of a device.

    Raises:
        NotFoundInTime: the solver had no choice in time; what was given before holds.
    """
    problem, stages = model.problem, model.staged.num_stages
    multipliers = np.array(s_per_byte, dtype=float)
    if not problem.demands or not multipliers.size:
        relaxed = solve_exactly(problem.without_limit(), seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock, gap=_CLOSE)
        bound, choice = relaxed.lower_bound / stages, relaxed.choice
        yield bound
        if stages > 1 and not time_limit.is_up():
            yield max(bound, bottleneck_bound(model, choice, time_limit=time_limit)[0])
        return
    relaxation = StageRelaxation(problem, np.array(model.stage_counts.node_stage), stages, memory_bytes)
    bound, choice = -np.inf, np.zeros(0, dtype=np.int64)
    for relaxed_at, _, _ in ascend(relaxation, multipliers, memory_bytes, _FIRST_ROUNDS, time_limit, _PATIENCE):
        if relaxed_at.bound / stages > bound:
            bound, multipliers, choice = relaxed_at.bound / stages, relaxed_at.multipliers, relaxation.expand(relaxed_at)
            yield bound
    if stages == 1 or not choice.size:
        return
    micro, weighted = _weighted(model, choice)
    for other_s, _ in _bottleneck_bounds(model, micro, weighted, multipliers, memory_bytes, time_limit):
        bound = max(bound, other_s)
        yield bound


def _weighted(model: SearchModel, choice: Ints) -> tuple[Floats, Problem]:
    """(how often (1) counts a micro-batch of each stage, the problem whose objective is the right side of (1))."""
    stages, (slow, slow_once) = model.staged.num_stages, model.slowest_stages(choice)
    micro = np.full(stages, 1.0)
    micro[slow] = model.micro_batches
    once = np.zeros(stages)
    once[slow_once] = 1.0

    def weight(stage: int, count: int) -> float:
        return float(micro[stage]) / count if count > 1 else float(once[stage])

    return micro, model.weighted(weight)


def _bottleneck_bounds(
    model: SearchModel,
    micro: Floats,
    weighted: Problem,
    s_per_byte: Floats,
    memory_bytes: float,
    time_limit: TimeLimit,
    rounds: int = ROUNDS,
) -> Iterator[tuple[float, Ints]]:
    """(1) at multipliers that are searched from those of the search's own objective, until they raise it no more; and the choices."""
    stages = model.staged.num_stages
    relaxation = StageRelaxation(weighted, np.array(model.stage_counts.node_stage), stages, memory_bytes)
    begin = s_per_byte * micro / model.pipeline_slots
    for relaxed, _, _ in ascend(relaxation, begin, memory_bytes, rounds, time_limit, _PATIENCE):
        yield relaxed.bound, relaxation.expand(relaxed)
