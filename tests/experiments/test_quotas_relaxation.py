"""The relaxation of quotas and the quotas settled from it: bounds hold, cuts raise them, and what is settled reaches its period."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_problems import howard_s, small

from experiments.quotas.cycles import cycle_cuts
from experiments.quotas.instances import layered, training
from experiments.quotas.linear import relax, relaxations
from experiments.quotas.settle import smallest_settled
from simulator.quotas.bounds import least_quotas
from simulator.quotas.least_bytes import least_bytes

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(2, 8))
@settings(max_examples=40, deadline=None)
def test_relaxation_bounds_the_certified_optimum_from_below(seed: int, halves: int) -> None:
    rng = random.Random(seed)
    problem = small(rng, 1)
    wanted_s = howard_s(problem, problem.upper) * halves / 2
    relaxed, best = relax(problem, wanted_s), least_bytes(problem, wanted_s)
    assert relaxed is not None and best is not None
    assert relaxed.bound_bytes <= best.total_bytes * (1 + 1e-6)


@given(seeds, st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_cuts_around_cycles_hold_for_every_certified_optimum_and_never_lower_the_bound(seed: int, halves: int) -> None:
    rng = random.Random(seed)
    problem = small(rng, 1)
    wanted_s = howard_s(problem, problem.upper) * halves / 2
    bounds = [relaxed.bound_bytes for relaxed in relaxations(problem, wanted_s, 10)]
    best = least_bytes(problem, wanted_s)
    assert best is not None
    assert all(after >= before * (1 - 1e-9) for before, after in zip(bounds, bounds[1:], strict=False))
    assert bounds[-1] <= best.total_bytes * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_on_sparse_random_graphs_cuts_close_more_than_half_of_the_way_from_the_relaxation_to_the_optimum(seed: int) -> None:
    problem = layered(60, 90, seed)
    lower = least_quotas(problem, 2.0)
    assert lower is not None
    bounds = [relaxed.bound_bytes for relaxed in relaxations(problem.bounded(lower), 2.0, 50)]
    best = least_bytes(problem, 2.0)
    assert best is not None and best.total_bytes == best.bound_bytes
    assert best.total_bytes - bounds[-1] < 0.5 * (best.total_bytes - bounds[0])


def test_the_cut_of_a_cycle_rounds_up_what_its_rows_add_up_to() -> None:
    # Ring 0 from act 1 back to act 0, a fixed arc 0 -> 1; both quotas of the 4-cycle 2 -> 3 -> 4 -> 5 belong to Buffers 1 and 2; 6 -> 6 has none.
    tail, head = np.array([0, 1, 2, 3, 4, 5, 6]), np.array([1, 0, 3, 4, 5, 2, 6])
    low = np.array([0.5, 0.75, 0.25, 0.5, 0.25, 0.5, 0.0])
    buffer = np.array([-1, 0, -1, 1, -1, 2, -1])
    cuts = cycle_cuts(7, tail, head, low, buffer, np.array([1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 1.0]))
    assert cuts.least.tolist() == [2.0, 2.0]
    assert [part.tolist() for part in np.split(cuts.buffer, cuts.first[1:])] == [[0], [1, 2]]
    assert cuts.times.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_settled_quotas_lie_between_the_optimum_and_their_own_bound_and_reach_the_period(seed: int) -> None:
    problem = layered(60, 90, seed)
    settled, best = smallest_settled(problem, 2.0), least_bytes(problem, 2.0)
    assert settled is not None and best is not None and best.total_bytes == best.bound_bytes
    assert settled.bound_bytes <= best.total_bytes <= settled.total_bytes
    assert howard_s(problem, settled.quotas) <= 2.0 * (1 + 1e-8)


def test_settled_quotas_are_the_same_every_time() -> None:
    one, two = (smallest_settled(layered(100, 190, 7), 2.0) for _ in range(2))
    assert one is not None and two is not None
    assert one.quotas.tolist() == two.quotas.tolist() and one.bound_bytes == two.bound_bytes


def test_two_thousand_regsts_of_a_training_graph_are_settled_within_2_percent_of_the_bound() -> None:
    """10,000 are measured in python -m experiments.quotas --speed."""
    problem = training(800, seed=1)
    assert len(problem.buffers) >= 1900
    settled = smallest_settled(problem, 2.0)
    assert settled is not None and settled.gap <= 0.02
    assert howard_s(problem, settled.quotas) <= 2.0 * (1 + 1e-8)
