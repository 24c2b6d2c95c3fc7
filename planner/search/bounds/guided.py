"""The layouts of a long model within memory, from what its pieces say a byte is worth.

The Lagrangian bound of planner.solve.limited.memory has a multiplier per stage.  The pieces, priced by themselves, give nearly the right ones, so a few
solutions of the whole do, where a search from nothing takes dozens:

    cheap    a little less than that price per byte: too large          small    a little more: fits
    mixed    stage by stage, the first blocks as in cheap and the others as in small, as many as fit

The bound is the best Lagrangian bound seen; it differs from the mixed choice by about one block's gain of each stage that memory binds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from planner.search.model import SearchModel
from planner.solve import Floats, Ints, Problem, Progress, Solution, Watch, solve_exactly
from planner.stages.blocks import blocks_of

__all__ = ["solve_guided"]

_ROUNDS, _MOST_ROUNDS = 7, 14
"""Solutions of the whole once something fits, and until something does."""
_CLOSE = 3e-3
_FIRST = 0.1
"""Share of a stage's cost that all of its memory is worth at the first price."""


def solve_guided(
    model: SearchModel,
    s_per_byte: Sequence[float],
    memory_bytes: float,
    *,
    seconds: float = float("inf"),
    watch: Watch | None = None,
) -> tuple[Solution, Floats] | None:
    """Search within the model's limit.

    Args:
        s_per_byte: per stage, about what a byte is worth to the objective; 0 where memory does not bind.
        memory_bytes: what a device has, at least the model's limit; the bound is about that.

    Returns:
        (a choice that fits, and a bound; the prices behind the bound); None where none was found this way.
    """
    began = perf_counter()
    problem, stages = model.problem, len(s_per_byte)
    blocks = _blocks(model)
    stage_of = np.array([stage for stage, _ in blocks])
    price = np.array(s_per_byte)
    low, high = np.full(stages, -1.0), np.full(stages, np.inf)  # dearest price that is too cheap, cheapest that is dear enough
    fits: Ints = np.full(len(blocks), -1)
    cheap: Ints = np.full(len(blocks), -1)
    best: Ints | None = None
    upper, bound = np.inf, -np.inf
    proof = price
    for turn in range(_MOST_ROUNDS):
        left_s = seconds - (perf_counter() - began)
        if best is not None and (turn >= _ROUNDS or left_s <= 0 or bound >= upper * (1 - _CLOSE)):
            break
        prices = {2 * s: float(y) for s, y in enumerate(price) if y > 0}
        try:
            lagrangian = solve_exactly(problem.charged(prices), seconds=max(left_s, 1.0), gap=_CLOSE)
        except KeyboardInterrupt:
            if best is None or watch is None:
                raise
            break
        value = lagrangian.lower_bound - sum(prices.values()) * memory_bytes
        if value > bound:
            bound, proof = value, price
        full: NDArray[np.bool_] = np.asarray((_each(problem, stages, lagrangian.choice) > problem.limit).any(axis=1))
        for s in range(stages):
            if full[s] and price[s] >= low[s]:
                cheap[stage_of == s], low[s] = lagrangian.choice[stage_of == s], price[s]
            elif not full[s] and price[s] <= high[s]:
                fits[stage_of == s], high[s] = lagrangian.choice[stage_of == s], price[s]
        if np.isfinite(high).all():
            wanted = np.where(cheap >= 0, cheap, fits)
            for choice in (fits.copy(), _mixed(problem, blocks, stages, wanted, fits)):
                if problem.feasible(choice) and (value := problem.objective(choice)) < upper:
                    best, upper = choice, value
        price = _next(price, low, high, full, _FIRST * lagrangian.lower_bound / stages / problem.limit)
        if watch is not None:
            watch(Progress(perf_counter() - began, float(upper), float(min(bound, upper))))
    if best is None:
        return None
    solution = Solution(
        choice=best,
        objective=upper,
        lower_bound=min(bound, upper),
        seconds=perf_counter() - began,
        method="exact",
        proof="Lagrangian bound at the pieces' prices",
        stats={"nodes": float(len(problem.names))},
    )
    return solution, proof


def _next(price: Floats, low: Floats, high: Floats, full: NDArray[np.bool_], first: float) -> Floats:
    """Prices of the next turn: between what is too cheap and what is dear enough; a step out while only one of them is known.

    Args:
        first: where to begin if the pieces said that memory binds nowhere.
    """
    both = (low >= 0) & np.isfinite(high)
    middle = np.where(both, (low + np.where(both, high, 0.0)) / 2, 0.0)
    dearer = np.where(price > 0, price * 2.0, price.max() / 4 or first)  # a stage whose pieces said that memory does not bind
    return np.where(both, middle, np.where(full, dearer, price * 0.6))


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
        places[node] = model.staged.home(value), place[reader[value]] if value in reader else 0
    for (value, stage), (node, _) in model.deliveries.items():
        source = maker.get(value, reader.get(value))
        places[node] = stage, place[source] if source is not None else 0
    return places


def _mixed(problem: Problem, blocks: Sequence[tuple[int, int]], stages: int, cheap: Ints, small: Ints) -> Ints:
    """On every stage as many of the first blocks as in ``cheap`` as fit, the others as in ``small``."""
    stage_of, place_of = np.array([s for s, _ in blocks]), np.array([b for _, b in blocks])
    more = _more(problem, stages, cheap, small)
    spare = problem.limit - _each(problem, stages, small)
    choice = small.copy()
    for s in range(stages):
        mine = stage_of == s
        gains = np.zeros(2)
        for place in np.unique(place_of[mine]):
            here = mine & (place_of == place)
            change = sum((more[node] for node in map(int, np.flatnonzero(here)) if node in more), np.zeros((stages, 2)))
            if (gains + change[s] <= spare[s]).all():
                gains = gains + change[s]
                choice[here] = cheap[here]
    return choice


def _each(problem: Problem, stages: int, choice: Ints) -> Floats:
    """Bytes on each stage's devices at its two times (shape: stages x 2)."""
    held = np.zeros(2 * stages)
    for d in problem.demands:
        held[d.start : d.stop] += d.amount[choice[d.node]]
    return held.reshape(stages, 2)


def _more(problem: Problem, stages: int, cheap: Ints, small: Ints) -> Mapping[int, Floats]:
    """Per node, what it holds more in ``cheap`` than in ``small``, at each stage's two times."""
    more: dict[int, Floats] = {}
    for d in problem.demands:
        change = float(d.amount[cheap[d.node]] - d.amount[small[d.node]])
        if change:
            more.setdefault(d.node, np.zeros(2 * stages))[d.start : d.stop] += change
    return {node: amounts.reshape(stages, 2) for node, amounts in more.items()}
