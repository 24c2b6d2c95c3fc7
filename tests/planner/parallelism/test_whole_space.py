"""The certified plan of random small problems against every choice of every shape: stages, cuts, device groups, micro-batches, recomputation, layouts.

More instances, as rows: python -m experiments.search_space.whole_space.
"""

from __future__ import annotations

import random
from math import inf

import pytest

from experiments.search_space.whole_space import checked, holds, instance
from planner.search import Method, build_model, search
from planner.search.bounds.bottleneck import whole_model_bounds
from planner.stages import assign_stages, prepare


@pytest.mark.representatives("equal-2", "kinds-7")
@pytest.mark.parametrize(("case", "seed"), [("equal", 2), ("equal", 3), ("equal", 4), ("kinds", 1), ("kinds", 7), ("kinds", 8)])
def test_no_choice_of_any_shape_beats_the_bound_and_the_plan_is_the_best_within_the_gap(case: str, seed: int) -> None:
    row = checked(instance(seed, case), schedules=False)
    assert holds(row), row


@pytest.mark.parametrize(
    ("column", "share"), [("lower_bound_s", 1.01), ("bound_share", 1.01), ("objective_s", 0.99), ("objective_s", 1.05)], ids=str
)
def test_a_row_whose_bound_or_plan_is_off_by_a_hundredth_breaks_the_law(column: str, share: float) -> None:
    row = {"case": "equal", "objective_s": 1.0, "lower_bound_s": 1.0, "covered_s": 1.0, "bound_share": 1.0}
    assert holds(row) and not holds(row | {column: share})


@pytest.mark.parametrize("seed", range(1, 5))
def test_at_any_multipliers_no_choice_within_memory_beats_the_bound_of_the_whole_model(seed: int) -> None:
    one = instance(seed, "equal")
    graph = one.program.graph(2)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    model = build_model(staged, (1,), one.cluster, (), 2, limit_bytes=1e30, in_flight=(2, 1))
    rng = random.Random(seed)
    best = list(search(model, Method.EXACT).choice)
    choices = [
        [s if rng.random() < 0.95 else rng.randrange(len(costs)) for s, costs in zip(best, model.problem.costs, strict=True)]
        for _ in range(200)
    ]
    allowed = [choice for choice in choices if model.problem.objective(choice) < inf]
    assert len(allowed) > 5
    for choice in allowed:
        memory_bytes = model.problem.peak(choice)
        multipliers = [rng.choice((0.0, 1e-12, 1e-9, 1e-6)) for _ in range(2)]
        *_, bound_s = whole_model_bounds(model, s_per_byte=multipliers, memory_bytes=memory_bytes)
        assert bound_s <= model.step_s(choice) * (1 + 1e-9), (multipliers, memory_bytes)
