"""1F1B and the link-aware rule come out of the optimiser; nobody told it."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_problems import exhaustive, howard_s, small
from single_rate import decided, pipeline, smallest_single_rate

from simulator.quotas.least_bytes import least_bytes
from simulator.quotas.rules import link_aware_quota


def _stashes(stages: int, backward_s: float, link_s: float, *, streams: bool) -> list[int]:
    """Quotas from F (1 s) to B that the optimiser gives each stage at full throughput, F + B per micro-batch."""
    problem, pairs = pipeline(stages, 1.0, backward_s, link_s)
    pairs = pairs if streams else ()
    period_s = 1.0 + backward_s
    solution = smallest_single_rate(problem, period_s, pairs)
    assert solution is not None
    sized, order = solution
    assert sized.total_bytes == sized.bound_bytes
    assert howard_s(decided(problem, pairs, order), sized.quotas) <= period_s * (1 + 1e-8)
    return [int(q) for q in sized.quotas[:stages]]


@pytest.mark.parametrize("stages", [2, 3, 4, 6])
@pytest.mark.parametrize("backward_s", [1.0, 2.0])
def test_equal_stages_with_free_links_get_the_quotas_of_1f1b(stages: int, backward_s: float) -> None:
    assert _stashes(stages, backward_s, 0.0, streams=True) == [stages - i for i in range(stages)]


@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("link_s", [0.1, 0.3, 0.75, 1.4])
def test_data_and_quotas_alone_need_the_link_aware_rule(stages: int, link_s: float) -> None:
    wanted = [link_aware_quota(stages, i, 1.0, 2.0, link_s) for i in range(stages)]
    assert _stashes(stages, 2.0, link_s, streams=False) == wanted
    sized = least_bytes(pipeline(stages, 1.0, 2.0, link_s)[0], 3.0)
    assert sized is not None and [int(q) for q in sized.quotas[:stages]] == wanted


@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("link_s", [0.1, 0.3, 0.75, 1.4])
def test_order_that_repeats_every_micro_batch_rounds_up_once_per_stage(stages: int, link_s: float) -> None:
    """A full stage runs F and B back to back, so each border adds whole periods: the rule's one rounding becomes one per border."""
    wanted = [1 + (stages - 1 - i) * ceil(1 + 2 * link_s / 3.0) for i in range(stages)]
    assert _stashes(stages, 2.0, link_s, streams=True) == wanted


@pytest.mark.parametrize(("stages", "link_s"), [(4, 0.3), (6, 1.0)])
def test_quotas_of_1f1b_miss_full_throughput_when_links_take_time(stages: int, link_s: float) -> None:
    problem, pairs = pipeline(stages, 1.0, 2.0, link_s)
    of_1f1b = [replace(buffer, upper=stages - i) for i, buffer in enumerate(problem.buffers[:stages])]
    short = replace(problem, buffers=(*of_1f1b, *problem.buffers[stages:]))
    assert smallest_single_rate(short, 3.0, pairs) is None
    assert smallest_single_rate(problem, 3.0, pairs) is not None


def test_link_aware_rule_is_1f1b_without_links() -> None:
    assert all(link_aware_quota(p, i, 1.0, 2.0, 0.0) == p - i for p in range(1, 9) for i in range(p))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_both_formulations_find_the_same_optimum(seed: int) -> None:
    rng = random.Random(seed)
    problem = small(rng, 1)
    wanted_s = howard_s(problem, problem.upper) * rng.choice((1.0, 1.3, 2.0))
    milp, cuts = smallest_single_rate(problem, wanted_s), least_bytes(problem, wanted_s)
    assert milp is not None and cuts is not None
    assert milp[0].total_bytes == cuts.total_bytes == exhaustive(problem, wanted_s)
