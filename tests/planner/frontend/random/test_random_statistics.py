"""Draws are what they are called: rates, means and variances within their intervals, no correlation between ranks, micro-batches and steps.

Each bound is five standard deviations of the statistic under the law, which a right generator leaves once in two million tests; the seed is fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import pi, sqrt

import pytest
import torch
from torch import Tensor

from planner.frontend.random import Drawing, drawing
from planner.frontend.random.eager import EagerDraws
from planner.frontend.random.kernels import bernoulli, dropout, words

SIGMAS = 5.0
SEED = torch.tensor(20261122)


def uniform_words(n: int, *, step: int = 0, draw: int = 0, offset: int = 0, micro_batch: int = 0, seed: Tensor = SEED) -> Tensor:
    """n words of a tensor of 16 n elements, as numbers in [0, 1)."""
    drawn = words(seed, torch.tensor(step), (n,), (16 * n,), (offset,), draw, micro_batch)
    return drawn.to(torch.float64).mul_(2.0**-32)


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


@pytest.mark.representatives("0.5-200000", "0.9-200000", "0.99-200000")
@pytest.mark.parametrize("n", [200_000, 10_000_000])
@pytest.mark.parametrize("keep", [0.5, 0.9, 0.99])
def test_a_mask_keeps_its_share(keep: float, n: int) -> None:
    kept = bernoulli(SEED, torch.tensor(3), (n,), torch.float64, keep, (n,), (), 1)
    assert abs(float(kept.mean()) - keep) < SIGMAS * sqrt(keep * (1 - keep) / n)
    dropped = dropout(torch.ones(n, dtype=torch.float64), SEED, torch.tensor(3), keep, keep, (n,), (), 1)
    variance = (1 - keep) / keep
    assert abs(float(dropped.mean()) - 1) < SIGMAS * sqrt(variance / n)
    fourth = keep * (1 / keep - 1) ** 4 + (1 - keep)
    assert abs(float((dropped - 1).square().mean()) - variance) < SIGMAS * sqrt((fourth - variance**2) / n) + 1e-9


@pytest.mark.representatives("200000")
@pytest.mark.parametrize("n", [200_000, 10_000_000])
def test_uniform_numbers_have_the_moments_of_the_law_and_fill_their_bins(n: int) -> None:
    drawn = uniform_words(n)
    assert abs(float(drawn.mean()) - 1 / 2) < SIGMAS * sqrt(1 / 12 / n)
    assert abs(float((drawn - 0.5).square().mean()) - 1 / 12) < SIGMAS * sqrt(1 / 180 / n)
    bins = torch.histc(drawn, 256, 0.0, 1.0)
    chi_square = float(((bins - n / 256) ** 2 / (n / 256)).sum())
    assert abs(chi_square - 255) < SIGMAS * sqrt(2 * 255)


@pytest.mark.representatives("200000")
@pytest.mark.parametrize("n", [200_000, 2_000_000])
def test_ranks_micro_batches_steps_ops_and_seeds_are_uncorrelated(n: int) -> None:
    streams = {
        "here": uniform_words(n),
        "the next rank": uniform_words(n, offset=n),
        "the last rank": uniform_words(n, offset=15 * n),
        "the next micro-batch": uniform_words(n, micro_batch=1),
        "the next step": uniform_words(n, step=1),
        "a late step": uniform_words(n, step=100_000),
        "the next op": uniform_words(n, draw=1),
        "another seed": uniform_words(n, seed=SEED + 1),
        "a seed that differs in its high word": uniform_words(n, seed=SEED + (1 << 32)),
        "one element on": uniform_words(n, offset=1),
        "a block on": uniform_words(n, offset=4),
    }
    for first, second in combinations(streams, 2):
        assert abs(correlation(streams[first], streams[second])) < SIGMAS / sqrt(n), (first, second)


LAWS: dict[str, tuple[Callable[[int], Tensor], float, float, float]] = {
    # what is drawn, mean, variance, fourth central moment
    "rand": (lambda n: torch.rand(n, dtype=torch.float64), 1 / 2, 1 / 12, 1 / 80),
    "randn": (lambda n: torch.randn(n, dtype=torch.float64), 0.0, 1.0, 3.0),
    "normal_": (lambda n: torch.empty(n, dtype=torch.float64).normal_(2.0, 3.0), 2.0, 9.0, 243.0),
    "uniform_": (lambda n: torch.empty(n, dtype=torch.float64).uniform_(-1.0, 3.0), 1.0, 16 / 12, 256 / 80),
    "exponential_": (lambda n: torch.empty(n, dtype=torch.float64).exponential_(2.0), 1 / 2, 1 / 4, 9 / 16),
    "gumbel": (
        lambda n: -torch.empty(n, dtype=torch.float64).exponential_().log(),
        0.5772156649015329,
        pi**2 / 6,
        pi**4 * 3 / 20,
    ),
    "bernoulli_": (lambda n: torch.empty(n, dtype=torch.float64).bernoulli_(0.25), 1 / 4, 3 / 16, 21 / 256),
    "geometric_": (lambda n: torch.empty(n, dtype=torch.float64).geometric_(0.5), 2.0, 2.0, 38.0),
    "randint": (lambda n: torch.randint(0, 2, (n,)).double(), 1 / 2, 1 / 4, 1 / 16),
    "randperm": (lambda n: torch.randperm(n)[: n // 2].double() / n, 1 / 2, 1 / 12, 1 / 80),
    "multinomial": (lambda n: torch.multinomial(torch.tensor([[3.0, 1.0]]).expand(n, 2), 1)[:, 0].double(), 1 / 4, 3 / 16, 21 / 256),
}


@pytest.mark.parametrize("name", LAWS)
def test_each_op_of_torch_draws_by_its_law(name: str) -> None:
    draw, mean, variance, fourth = LAWS[name]
    n = 200_000
    with drawing(Drawing(seed=SEED, steps=torch.tensor(0))), EagerDraws():
        drawn = draw(n)
    n = len(drawn)
    assert abs(float(drawn.mean()) - mean) < SIGMAS * sqrt(variance / n)
    assert abs(float((drawn - mean).square().mean()) - variance) < SIGMAS * sqrt((fourth - variance**2) / n) + 1e-12


def test_a_permutation_has_every_place_once_and_is_another_in_every_step() -> None:
    made = []
    for step in range(2):
        with drawing(Drawing(seed=SEED, steps=torch.tensor(step))), EagerDraws():
            made.append(torch.randperm(1000))
    assert all(torch.equal(order.sort().values, torch.arange(1000)) for order in made)
    assert not torch.equal(*made)
