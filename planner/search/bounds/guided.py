"""The layouts of a long model within a memory limit, by one Lagrange multiplier per stage (planner.search.bounds.ascent).

The multiplier of a stage is the price of a byte there, in seconds.  Three choices are kept:

    cheap    of the largest multiplier that was too small: it costs less and does not fit
    small    of the smallest multiplier that was large enough: it fits
    mixed    on each stage the first blocks from cheap and the others from small, as many from cheap as fit

The bound is the best Lagrangian bound of all rounds.  The mixed choice exceeds it by about the gain of one block on each stage where memory
binds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.search.bounds.ascent import StageRelaxation, ascend
from planner.search.model import SearchModel
from planner.solve import Problem, Solution
from planner.solve.problem import Floats, Ints, NotFoundInTime, Progress, Watch
from planner.solve.time_limit import NO_LIMIT, TimeLimit
from planner.stages.blocks import blocks_of

__all__ = ["CLOSE", "solve_guided"]

_ROUNDS, _MOST_ROUNDS = 7, 14
"""Rounds after which the search ends if some choice fits, and if none does."""
CLOSE = 3e-3
"""The search ends when the bound is within this share of the best choice."""


def solve_guided(
    model: SearchModel,
    s_per_byte: Sequence[float],
    memory_bytes: float,
    *,
    time_limit: TimeLimit = NO_LIMIT,
    watch: Watch | None = None,
    known: Ints | None = None,
) -> tuple[Solution, Floats] | None:
    """Search within the memory limit of the model's problem.

    Args:
        s_per_byte: per stage, an estimate of its multiplier; 0 where memory does not bind, or where nothing is known.
        memory_bytes: of a device, at least the problem's limit; the bound holds for all choices within it.
        time_limit: no round begins once it is up.   known: a choice, which may be the one that is returned.

    Returns:
        (a choice that fits, with a bound; the multipliers that gave the bound); None if no choice fitted in any round, or in time.
    """
    problem, stages = model.problem, len(s_per_byte)
    blocks = _blocks(model)
    stage_of = np.array([stage for stage, _ in blocks])
    relaxation = StageRelaxation(problem, stage_of, stages, memory_bytes)
    small: Ints = np.full(len(blocks), -1)
    cheap: Ints = np.full(len(blocks), -1)
    best: Ints | None = None
    upper, bound = np.inf, -np.inf
    if known is not None and problem.feasible(known):
        best, upper = known, problem.objective(known)
    bound_multiplier = np.array(s_per_byte)
    rounds = ascend(relaxation, bound_multiplier, problem.limit, _MOST_ROUNDS, time_limit)
    for number in range(_MOST_ROUNDS):
        if best is not None and (number >= _ROUNDS or bound >= upper * (1 - CLOSE)):
            break
        try:
            relaxed, too_small, large_enough = next(rounds)
        except (StopIteration, NotFoundInTime):
            break
        except KeyboardInterrupt:
            if best is None or watch is None:
                raise
            break
        if relaxed.bound > bound:
            bound, bound_multiplier = relaxed.bound, relaxed.multipliers
        found = relaxation.expand(relaxed)
        cheap = np.where(too_small[stage_of], found, cheap)
        small = np.where(large_enough[stage_of], found, small)
        if (small >= 0).all():
            cheap_or_small = np.where(cheap >= 0, cheap, small)
            for choice in (small.copy(), _mixed(problem, blocks, stages, cheap_or_small, small)):
                if problem.feasible(choice) and (value := problem.objective(choice)) < upper:
                    best, upper = choice, value
        if watch is not None:
            watch(Progress(time_limit.elapsed_s(), float(upper), float(min(bound, upper))))
    if best is None:
        return None
    solution = Solution(
        choice=best,
        objective=upper,
        lower_bound=min(bound, upper),
        seconds=time_limit.elapsed_s(),
        method="exact",
        proof="Lagrangian bound at a price of memory per stage",
        stats={"nodes": float(len(problem.names))},
    )
    return solution, bound_multiplier


def _blocks(model: SearchModel) -> Sequence[tuple[int, int]]:
    """(stage, number of its block in forward order) per node."""
    graph = model.staged.graph
    block, number = blocks_of(graph), dict[str, int]()
    place = {op.id: number.setdefault(block[op.id], len(number)) for op in graph.ops}
    maker = {value: op.id for op in graph.ops for value in op.outputs if value is not None}
    reader: dict[str, str] = {}
    for op in graph.ops:
        for value in op.inputs:
            reader.setdefault(value, op.id)
    places = [(0, 0)] * len(model.problem.names)
    for op_id, (node, _) in model.ops.items():
        places[node] = model.staged.stage[op_id], place[op_id]
    for value, (node, _) in model.states.items():
        places[node] = model.staged.state_stage(value), place[reader[value]] if value in reader else 0
    for (value, stage), (node, _) in model.deliveries.items():
        source = maker.get(value, reader.get(value))
        places[node] = stage, place[source] if source is not None else 0
    return places


def _mixed(problem: Problem, blocks: Sequence[tuple[int, int]], stages: int, cheap: Ints, small: Ints) -> Ints:
    """On every stage the first blocks from ``cheap``, as many as fit, and the others from ``small``."""
    stage_of, place_of = np.array([s for s, _ in blocks]), np.array([b for _, b in blocks])
    more = _more_bytes(problem, stages, cheap, small)
    spare = problem.limit - _stage_bytes(problem, stages, small)
    choice = small.copy()
    for s in range(stages):
        on_stage = stage_of == s
        added = np.zeros(2)
        for place in np.unique(place_of[on_stage]):
            in_block = on_stage & (place_of == place)
            change = sum((more[node] for node in map(int, np.flatnonzero(in_block)) if node in more), np.zeros((stages, 2)))
            if (added + change[s] <= spare[s]).all():
                added = added + change[s]
                choice[in_block] = cheap[in_block]
    return choice


def _stage_bytes(problem: Problem, stages: int, choice: Ints) -> Floats:
    """Bytes on each stage's devices at the stage's two times (shape: stages x 2)."""
    return problem.held(choice, 2 * stages).reshape(stages, 2)


def _more_bytes(problem: Problem, stages: int, cheap: Ints, small: Ints) -> Mapping[int, Floats]:
    """Per node, the bytes that it holds in ``cheap`` beyond those in ``small``, at each stage's two times."""
    more: dict[int, Floats] = {}
    for d in problem.demands:
        change = float(d.amount[cheap[d.node]] - d.amount[small[d.node]])
        if change:
            more.setdefault(d.node, np.zeros(2 * stages))[d.start : d.stop] += change
    return {node: amounts.reshape(stages, 2) for node, amounts in more.items()}
