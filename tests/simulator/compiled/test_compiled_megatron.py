"""The graph that simulators are measured with is a legal Plan, and folding its ranks changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.common.megatron_1t import Megatron, megatron_1t
from planner.ir.actors.verify import verify_structure
from planner.ir.traces.trace import check_trace
from simulator import Engine, simulate
from simulator.compiled import compile_plan, times

SMALL = Megatron(layers=4, hidden=256, sequence=64, tensor_parallel=2, stages=2, micro_batches=3, copies=2)


@pytest.mark.parametrize("ordered", [True, False])
def test_one_rank_per_stage_stands_for_all(ordered: bool):
    plan, cost = megatron_1t(SMALL, ordered=ordered)
    verify_structure(plan)
    slow = simulate(plan, cost, steps=2, engine=Engine.SIMPY)
    quick = simulate(plan, cost, steps=2, engine=Engine.COMPILED)
    assert quick.about["simulated_ranks"] == "2 of 8"
    assert replace(quick, about=slow.about) == slow
    check_trace(plan, quick)


@pytest.mark.parametrize("ordered", [True, False])
def test_times_of_all_ranks_and_of_one_per_stage_are_equal(ordered: bool):
    plan, cost = megatron_1t(SMALL, ordered=ordered)
    folded, unfolded = (times(compile_plan(plan, cost, fold=fold), steps=2) for fold in (True, False))
    assert folded.step_ends_s == unfolded.step_ends_s
    assert folded.num_acts == unfolded.num_acts == unfolded.num_firings == 4 * folded.num_firings
    assert folded.kernel == ("recurrence" if ordered else "events")


def test_the_bubble_is_that_of_1f1b_without_the_recomputation_which_needs_no_gradient():
    """Equal stages, free links and collectives: a step takes m (F + R + B) + (p - 1) (F + B); R runs while a stage waits for the gradient."""
    plan, cost = megatron_1t(replace(SMALL, stages=4, micro_batches=8, copies=1))
    free = ("load", "send", "back", "update")
    level = {name: 0.0 if name.startswith(free) or "reduce" in name else 2.0 if name.startswith("B") else 1.0 for name in cost.act_times_s}
    compiled_times = times(compile_plan(plan, replace(cost, act_times_s=level)), steps=1)
    forward_s, again_s, backward_s = 10.0, 10.0, 20.0  # 10 of the 12 tasks compute
    assert compiled_times.makespan_s == 8 * (forward_s + again_s + backward_s) + 3 * (forward_s + backward_s)
