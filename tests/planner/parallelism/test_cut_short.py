"""A search that its time limit ended far from a proof says so, with the proven gap and what to do."""

from __future__ import annotations

import warnings

import pytest
import torch
from matrix import roomy_cluster
from torch import nn

from planner.frontend import Program
from planner.ir.plan import Search
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.proof import SearchCutShort, check_search


def search(step_s: float, bound_s: float) -> Search:
    return Search(method="exact", cost_model="any", objective_s=step_s, lower_bound_s=bound_s)


def test_a_search_cut_far_from_its_bound_is_told_with_the_proven_gap_and_the_way_out() -> None:
    told = str(check_search(search(12.0, 1.0), 5.0, 5.1))
    assert told == (
        "the search was cut short by its 5 seconds: the best plan takes at least 8% of this one's time, so it may be 12 times as quick; "
        "give it more (--seconds), or search when the machine is less busy"
    )
    assert "nothing is proven about how much quicker" in str(check_search(search(12.0, 0.0), 5.0, 5.1))


def test_a_search_that_ended_by_itself_or_close_to_its_bound_is_not_told() -> None:
    assert check_search(search(12.0, 1.0), 5.0, 4.9) is None
    assert check_search(search(12.0, 1.0), float("inf"), 1000.0) is None
    assert check_search(search(1.0, 0.99), 5.0, 5.1) is None


def test_a_plan_whose_search_had_no_time_warns_and_one_with_time_does_not() -> None:
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)]
    program = Program(nn.Sequential(*layers), (torch.zeros(8, 8),), lambda y: y.square().mean())

    def plan(seconds: float) -> Search:
        options = PlanOptions(stages=None, micro_batches=None, seconds=seconds)
        return search_plans(program.graph, model="m", batch_size=8, cluster=roomy_cluster(4), options=options).plan.search

    with warnings.catch_warnings():
        warnings.simplefilter("error", SearchCutShort)
        assert plan(1000.0).lower_bound_s > 0
    with pytest.warns(SearchCutShort, match="the search was cut short by its 1e-09 seconds"):
        plan(1e-9)


@pytest.mark.parametrize("seconds", [float("inf"), 1e9])
def test_no_time_is_never_up_before_it_began(seconds: float) -> None:
    assert check_search(search(2.0, 0.0), seconds, 0.0) is None
