"""Plans whose communications share links: the same trace as the engine's where nothing is shared, exact times where something is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import dags, is_live, live_dags, prices
from stories import BLOCK_BYTES, Story, TableCost, chain, data_parallel, pipeline

from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan, Unsupported
from planner.ir.plan import Placement, Plan, TaskKind
from planner.ir.traces.trace import Act, Trace, check_trace
from simulator import Engine, simulate
from simulator.analysis.forecast import forecast
from simulator.engine import simulate_shared
from simulator.network import Sharing
from simulator.network.fabric import Machine
from simulator.network.link_shares import link_shares
from simulator.noise import Noise, simulate_noisy
from tests.tiers import examples

ALONE_S = BLOCK_BYTES / 1e9
"""The story cluster's ports pass 1e9 bytes/s, and a ring of 2 sends each rank's whole block: this act fills its links."""


def same(shared: Trace, alone: Trace) -> bool:
    return (shared.acts, shared.peak_bytes, shared.register_bytes) == (alone.acts, alone.peak_bytes, alone.register_bytes)


def spans(trace: Trace, task: str, rank: int = 0) -> list[tuple[float, float]]:
    return [(act.start_s, act.end_s) for act in trace.acts if act.task == task and act.rank == rank]


def collectives(num: int, quota: int = 1) -> Plan:
    """``num`` all-reduces of two ranks on streams of their own, and a backward that computes meanwhile."""
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    for number in range(num):
        story.regst(f"made{number}", f"load{number}", quota)
        story.task(f"load{number}", produces=[f"made{number}"], kind=TaskKind.SOURCE)
        story.regst(f"sum{number}", f"reduce{number}")
        story.task(f"reduce{number}", [f"made{number}"], [f"sum{number}"], collective=Collective.ALL_REDUCE)
    story.regst("given", "load")
    story.task("load", produces=["given"], kind=TaskKind.SOURCE)
    story.regst("out", "backward")
    story.task("backward", ["given"], ["out"], kind=TaskKind.BACKWARD)
    return story.freeze()


def priced(**times_s: float) -> TableCost:
    return TableCost(times_s, default_s=0.0)


# --- nothing shared -----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from([Sharing.NONE, Sharing.MAX_MIN]))
def test_on_one_rank_the_trace_is_the_engines(data, sharing):
    plan = data.draw(live_dags())
    cost = data.draw(prices(plan))
    assert same(simulate_shared(plan, cost, steps=2, sharing=sharing), simulate(plan, cost, steps=2))


@pytest.mark.parametrize("sharing", [Sharing.NONE, Sharing.MAX_MIN])
@pytest.mark.parametrize("latency_s", [0.0, 0.3])
@pytest.mark.parametrize(
    "plan", [chain("abc", 2, 4), pipeline(3, 5), pipeline(4, 8, update=False), data_parallel(4)], ids=lambda p: p.model
)
def test_transfers_and_collectives_that_hardly_fill_their_links_make_the_engines_trace(plan, latency_s, sharing):
    cost = TableCost({"F1": 0.7, "B1": 1.9, "backward": 2.1, ("backward", 1): 2.7}, latency_s=latency_s)
    assert same(simulate_shared(plan, cost, steps=3, sharing=sharing), simulate(plan, cost, steps=3))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_without_sharing_full_links_make_the_engines_trace(ticks):
    plan = collectives(3)
    cost = priced(**{f"reduce{i}": ALONE_S * n for i, n in enumerate(ticks[:3])}, backward=ALONE_S * ticks[3])
    assert same(simulate_shared(plan, cost, sharing=Sharing.NONE), simulate(plan, cost))


# --- shared links -------------------------------------------------------------------------------------------------------


def test_a_collective_takes_the_price_of_its_slowest_rank():
    cost = TableCost({("reduce0", 0): 1.0, ("reduce0", 1): 2.0}, default_s=0.0)
    trace = simulate_shared(collectives(1), cost, steps=1)
    assert spans(trace, "reduce0") == spans(trace, "reduce0", 1) == [(0.0, 2.0)]
    assert same(trace, simulate(collectives(1), cost, steps=1))


def test_one_full_collective_takes_its_price():
    trace = simulate_shared(collectives(1), priced(reduce0=ALONE_S), steps=1)
    assert spans(trace, "reduce0") == spans(trace, "reduce0", 1) == [(0.0, ALONE_S)]


@given(st.integers(2, 5))
@settings(max_examples=4)
def test_collectives_at_once_share_their_links_equally(num):
    plan = collectives(num)
    trace = simulate_shared(plan, TableCost({f"reduce{i}": ALONE_S for i in range(num)}, default_s=0.0), steps=1)
    for i in range(num):
        assert spans(trace, f"reduce{i}")[0] == pytest.approx((0.0, num * ALONE_S))
    check_trace(plan, trace)


def test_a_collective_that_joins_later_slows_what_is_under_way():
    # reduce0 from 0; reduce1 from half of it on: they share for one ALONE_S, then reduce1 has half of its work left
    cost = priced(load1=ALONE_S / 2, reduce0=ALONE_S, reduce1=ALONE_S)
    trace = simulate_shared(collectives(2), cost, steps=1)
    assert spans(trace, "reduce0")[0] == pytest.approx((0.0, 1.5 * ALONE_S))
    assert spans(trace, "reduce1")[0] == pytest.approx((0.5 * ALONE_S, 2 * ALONE_S))


def test_collectives_that_need_half_a_link_each_do_not_feel_each_other():
    trace = simulate_shared(collectives(2), priced(reduce0=2 * ALONE_S, reduce1=2 * ALONE_S), steps=1)
    assert spans(trace, "reduce0") == spans(trace, "reduce1") == [(0.0, 2 * ALONE_S)]


def test_compute_is_slower_just_while_its_rank_communicates():
    # the all-reduce ends at 1; the backward has done 1/2 of its 3 seconds by then at half speed, and ends at 3.5
    trace = simulate_shared(collectives(1), priced(reduce0=1.0, backward=3.0), steps=1, compute_slowdown=2.0)
    assert spans(trace, "reduce0") == [(0.0, 1.0)]
    assert spans(trace, "backward") == spans(trace, "backward", 1) == [(0.0, 3.5)]


@dataclass(frozen=True)
class Slowed(TableCost):
    """Prices of a machine on which computing feels the communication beside it."""

    compute_slowdown: float = 2.0


def test_prices_that_say_how_computing_slows_are_simulated_so_and_share_no_links():
    cost = Slowed({"reduce0": 1.0, "reduce1": 1.0, "backward": 3.0}, default_s=0.0)
    trace = simulate(collectives(2), cost, steps=1)
    assert spans(trace, "reduce0") == spans(trace, "reduce1") == [(0.0, 1.0)]
    assert spans(trace, "backward") == [(0.0, 3.5)]


@given(st.data(), st.sampled_from([1.0, 1.5, 2.0]))
@settings(max_examples=30)
def test_a_forecast_tells_the_slow_down_that_the_trace_tells(data, slowdown):
    plan = data.draw(st.sampled_from([data_parallel(2), pipeline(2, 3), collectives(2)]))
    drawn = data.draw(prices(plan))
    cost = Slowed(drawn.act_times_s, drawn.latency_s, drawn.default_s, slowdown)
    trace, forecasted = simulate(plan, cost, steps=3), forecast(plan, cost, steps=3)
    assert forecasted.step_ends_s == pytest.approx(trace.step_ends_s(plan))


def test_the_compiled_engine_feels_communication_as_simpy_does():
    cost = Slowed({"reduce0": 1.0, "reduce1": 1.0, "backward": 3.0}, default_s=0.0)
    read, compiled = (simulate(collectives(2), cost, steps=2, engine=engine) for engine in (Engine.SIMPY, Engine.COMPILED))
    assert same(read, compiled)
    assert read.about["compute_slowdown"] == compiled.about["compute_slowdown"] == "2.0"
    assert forecast(collectives(2), cost, steps=2, engine=Engine.COMPILED).engine == "compiled"


def test_noise_is_felt_beside_communication_too():
    cost = Slowed({"reduce0": 1.0, "backward": 3.0}, default_s=0.0)
    noisy = simulate_noisy(collectives(1), cost, Noise(jitter=0.0), runs=2, steps=1)
    assert noisy.quiet_s == pytest.approx([3.5])
    assert (noisy.step_s == noisy.quiet_s).all()
    twice = simulate(collectives(1), cost, steps=1, factor=lambda task, rank, act: 2.0 if task == "reduce0" else 1.0)
    assert spans(twice, "backward") == [(0.0, 4.0)]


def test_who_watches_is_told_of_every_act_beside_communication():
    seen: list[Act] = []
    trace = simulate(collectives(2), Slowed(), steps=2, on_act=seen.append)
    assert sorted(seen, key=str) == sorted(trace.acts, key=str)


def test_the_shares_of_a_transfer_are_its_bytes_over_what_the_ports_could_pass_meanwhile():
    plan = pipeline(2, 1)
    shares = link_shares(plan, plan.task["send0"], (0,), 4 * ALONE_S, Machine(plan.cluster))
    assert shares == pytest.approx({"device:out:0": 0.25, "device:in:1": 0.25})
    assert link_shares(plan, plan.task["F0"], (0,), 1.0, Machine(plan.cluster)) == {}


# --- refusals -----------------------------------------------------------------------------------------------------------


@given(dags())
@settings(max_examples=examples(40))
def test_what_dead_locks_in_the_engine_dead_locks_here(plan):
    if is_live(plan):
        simulate_shared(plan, TableCost(), steps=1)
    else:
        with pytest.raises(DeadLock):
            simulate_shared(plan, TableCost(), steps=1)


def test_a_collective_that_never_completes_names_the_ranks_that_wait():
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    for name in ("x", "y"):
        story.regst(name, f"make_{name}")
        story.regst(f"sum_{name}", f"reduce_{name}")
        story.task(f"make_{name}", produces=[name], kind=TaskKind.SOURCE)
        story.task(f"reduce_{name}", [name], [f"sum_{name}"], collective=Collective.ALL_REDUCE, stream="comm")
    cost = TableCost({("make_x", 0): 1.0, ("make_y", 0): 2.0, ("make_x", 1): 2.0, ("make_y", 1): 1.0})
    with pytest.raises(DeadLock, match=r"reduce_x act 0: ranks \[0\] wait, ranks \[1\] never come"):
        simulate_shared(story.freeze(), cost, steps=1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, InvalidPlan, "steps = 0"),
        ({"sharing": Sharing.FIFO}, Unsupported, "FIFO"),
        ({"compute_slowdown": 0.5}, Unsupported, r"compute_slowdown = 0\.5"),
    ],
)
def test_impossible_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        simulate_shared(chain("ab", 1, 2), TableCost(), **options)


def test_an_impossible_price_is_refused():
    with pytest.raises(InvalidCluster, match="times must be finite"):
        simulate_shared(chain("ab", 1, 2), TableCost({"a": float("nan")}))


@pytest.mark.parametrize("engine", [Engine.SIMPY, Engine.COMPILED])
def test_times_beyond_a_float_are_refused(engine):
    with pytest.raises(InvalidCluster, match="more seconds than a float can hold"):
        simulate_shared(chain("ab", 1, 2), TableCost(default_s=1.5e308), engine=engine)
