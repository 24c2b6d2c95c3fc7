"""Stragglers and jitter: the same draws on both engines, the right slow-down, and honest intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidCluster, InvalidPlan, Unsupported
from planner.ir.plan import Plan
from planner.ir.traces.trace import check_trace
from simulator import simulate
from simulator.compiled import compile_plan
from simulator.compiled.recurrence_kernel import play_recurrence
from simulator.noise import Noise, simulate_noisy
from tests.tiers import examples


def ordered(plan: Plan) -> Plan:
    """Data parallel step with its compute stream's order written down."""
    order = ("forward", "backward", "update")
    return replace(plan, streams=tuple(replace(s, order=order) if s.id == "compute" else s for s in plan.streams))


# --- engines ----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_the_recurrence_starts_every_act_when_the_simulator_does(data: st.DataObject):
    plan = data.draw(st.one_of(live_dags(fixed_order=True), st.sampled_from([ordered(data_parallel(2)), ordered(data_parallel(3))])))
    cost = data.draw(prices(plan))
    noise = Noise(speed={0: 0.5}, jitter=0.5, link_jitter=0.25, seed=data.draw(st.integers(0, 99)))
    factor, steps = noise.factor(plan), 3
    trace = simulate(plan, cost, steps=steps, factor=factor)
    compiled = compile_plan(plan, cost, fold=False)
    base = np.concatenate(([0], np.cumsum(steps * compiled.tables.acts)))
    place = {(task.id, rank): first for (task, rank), first in zip(compiled.actors, base.tolist(), strict=False)}
    act_s = np.zeros(base[-1])
    for act in trace.acts:
        task = plan.task[act.task]
        act_s[place[act.task, act.rank] + act.number] = max(
            cost.act_s(plan, task, rank) * factor(act.task, rank, act.number) for rank in plan.peers(task, act.rank)
        )
    started = play_recurrence(compiled, steps, full=True, act_s=act_s).start_s
    for act in trace.acts:
        assert started[place[act.task, act.rank] + act.number] == act.start_s


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_many_runs_are_the_runs_of_the_simulator_one_by_one(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=data.draw(st.booleans())))
    cost, noise = data.draw(prices(plan)), Noise(jitter=0.3, link_jitter=0.1, seed=data.draw(st.integers(0, 9)))
    noisy = simulate_noisy(plan, cost, noise, runs=3, steps=3)
    for run in range(3):
        one = simulate(plan, cost, steps=3, factor=noise.factor(plan, run)).step_times_s(plan)
        assert noisy.step_s[run] == pytest.approx(one, rel=1e-12, abs=1e-12)
    assert noisy.quiet_s == pytest.approx(simulate(plan, cost, steps=3).step_times_s(plan), rel=1e-12, abs=1e-12)


def test_who_plays_is_said():
    assert simulate_noisy(pipeline(2, 2), TableCost(), Noise(), runs=1).engine == "simpy"
    assert simulate_noisy(chain("ab", 1, 2), TableCost(), Noise(), runs=1).engine == "max-plus"


def test_the_recurrence_refuses_streams_that_choose_as_they_go():
    compiled = compile_plan(pipeline(2, 2), TableCost(), fold=False)
    with pytest.raises(Unsupported, match="several tasks and no order"):
        play_recurrence(compiled, 1, full=False, act_s=np.ones(int(compiled.tables.acts.sum())))


def test_a_noisy_trace_keeps_the_six_laws():
    plan = pipeline(3, 5)
    noise = Noise(speed={1: 0.7}, jitter=0.4, link_jitter=0.4, seed=3)
    check_trace(plan, simulate(plan, TableCost(latency_s=0.1), steps=3, factor=noise.factor(plan)))


# --- stragglers -------------------------------------------------------------------------------------------------------


def test_all_wait_for_the_slowest_rank_in_the_all_reduce():
    plan, cost = ordered(data_parallel(4)), TableCost({"load": 0.0})
    slow = simulate_noisy(plan, cost, Noise(speed={2: 0.5}), runs=1, steps=4)
    # forward 1 + backward 1 + update 1 at half speed, the all-reduce is the link's
    assert slow.step_s[0].tolist() == [7.0, 7.0, 7.0, 7.0]
    assert slow.quiet_s.tolist() == [4.0, 4.0, 4.0, 4.0]
    assert slow.slowdown == 1.75


def test_two_slow_ranks_are_no_worse_than_the_slower_of_them():
    plan = ordered(data_parallel(4))
    one = simulate_noisy(plan, TableCost(), Noise(speed={2: 0.5}), runs=1)
    both = simulate_noisy(plan, TableCost(), Noise(speed={1: 0.8, 2: 0.5}), runs=1)
    assert both.step_s.tolist() == one.step_s.tolist()


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_with_fixed_orders_a_slower_rank_never_shortens_the_run(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    cost = data.draw(prices(plan))
    speed = data.draw(st.sampled_from([0.25, 0.5, 0.75]))
    run = simulate_noisy(plan, cost, Noise(speed={0: speed}), runs=1, steps=3)
    assert run.step_s[0].sum() >= run.quiet_s.sum() - 1e-12


# --- jitter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_jitter_has_mean_one_and_the_sigma_asked_for(sigma: float):
    plan = chain("ab", 1, acts=1)
    factors = Noise(jitter=sigma, seed=1).column(plan.task["b"], 0, 40_000)
    spread = float(np.sqrt(np.expm1(sigma**2) / 40_000))  # standard error of the mean
    assert abs(factors.mean() - 1) < 5 * spread
    assert np.log(factors).std() == pytest.approx(sigma, rel=0.02)


def test_the_draws_of_an_act_depend_on_seed_run_task_and_rank_alone():
    plan = data_parallel(3)
    noise = Noise(jitter=0.5, seed=7)
    factor, backward = noise.factor(plan, 2), plan.task["backward"]
    assert [factor("backward", 1, act) for act in (0, 300, 5)] == noise.column(backward, 1, 301, 2)[[0, 300, 5]].tolist()
    first = [noise.factor(plan, 2)("backward", 1, act) for act in range(9)]
    for other in (noise.factor(plan, 3), Noise(jitter=0.5, seed=8).factor(plan, 2)):
        assert all(other("backward", 1, act) != first[act] for act in range(9))
    assert factor("backward", 0, 0) != factor("backward", 1, 0)
    assert factor("forward", 1, 0) != factor("backward", 1, 0)


def test_ranks_that_meet_share_one_draw():
    plan = data_parallel(3)
    factor = Noise(link_jitter=0.5, seed=1).factor(plan)
    assert len({factor("all_reduce", rank, 4) for rank in range(3)}) == 1
    assert factor("all_reduce", 0, 4) != 1.0
    assert factor("backward", 0, 4) == 1.0


def test_jitter_alone_slows_ranks_that_wait_for_each_other_and_more_ranks_more():
    noise = Noise(jitter=0.2, seed=1)
    slow = [simulate_noisy(ordered(data_parallel(p)), TableCost(), noise, runs=200).slowdown for p in (1, 4, 16)]
    assert 0.97 < slow[0] < 1.01  # nobody to wait for: mean 1, median a little below
    assert slow[0] < slow[1] < slow[2]


# --- intervals --------------------------------------------------------------------------------------------------------


def test_the_interval_holds_its_share_of_the_runs():
    noisy = simulate_noisy(ordered(data_parallel(4)), TableCost(), Noise(jitter=0.3, seed=5), runs=400, steps=3)
    low, middle, high = noisy.interval_s(0.8)
    inside = ((noisy.means_s >= low) & (noisy.means_s <= high)).mean()
    assert low < middle < high
    assert inside == pytest.approx(0.8, abs=0.005)


def test_without_noise_all_runs_are_equal():
    noisy = simulate_noisy(pipeline(2, 4), TableCost(), Noise(seed=3), runs=40)
    assert (noisy.step_s == noisy.quiet_s).all()
    low, middle, high = noisy.interval_s()
    assert low == middle == high
    assert noisy.slowdown == 1.0


def test_progress_counts_the_runs():
    counts: list[int] = []
    simulate_noisy(chain("ab", 1, 1), TableCost(), Noise(), runs=3, on_run=counts.append)
    assert counts == [1, 2, 3]


def test_impossible_noise_is_refused_with_the_numbers():
    plan = chain("ab", 1, 1)
    for noise, says in (
        (Noise(speed={0: 0.0}), "rank 0 is to run at speed 0.0; speeds are positive"),
        (Noise(speed={0: float("nan")}), "speed nan"),
        (Noise(speed={1: 0.5}), r"rank 1 is to run at speed 0.5; the plan has ranks 0 \.\. 0"),
        (Noise(jitter=-0.1), "jitter = -0.1"),
        (Noise(link_jitter=3.0), "link_jitter = 3.0"),
    ):
        with pytest.raises(InvalidCluster, match=says):
            simulate_noisy(plan, TableCost(), noise)
    with pytest.raises(InvalidPlan, match="runs = 0"):
        simulate_noisy(plan, TableCost(), Noise(), runs=0)
    with pytest.raises(InvalidPlan, match=r"5 runs say nothing about the outer 0\.05 of them; ask for at least 10 runs"):
        simulate_noisy(plan, TableCost(), Noise(), runs=5).interval_s(0.9)
