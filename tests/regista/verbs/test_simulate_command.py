"""The screen of ``regista simulate``: every figure against one worked out by other means, and its size."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest
import stories
from command_line import TINY, Command, commands
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices

import regista
from planner.cost import AnalyticCost
from planner.ir.cluster import LinkSpec, Rate
from planner.ir.files import load_plan, load_trace, save_plan
from planner.ir.plan import DTypeFlop, Fragment, Plan, StreamKind, Task, TaskKind
from planner.ir.protocols import CostModel
from planner.ir.tensor import DType
from planner.ir.traces.trace import Trace
from planner.ir.units import show_bytes, show_s
from regista.analysis import outlook
from regista.analysis.outlook import look, tokens_per_sample
from regista.verbs.fitting import LINES
from simulator import Engine, simulate
from simulator.analysis.curve import memory_curves
from simulator.analysis.forecast import forecast
from simulator.compiled import compile_plan
from simulator.noise import Noise, simulate_noisy
from simulator.steady import graph

FLOP = {TaskKind.FORWARD: 10**9, TaskKind.BACKWARD: 2 * 10**9, TaskKind.UPDATE: 0}
"""At the story's rate of 1e9 flop/s: F = 1 s, B = 2 s."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def equal_stages(stages: int, micro_batches: int, **link: float) -> Plan:
    """1F1B with F = 1 s and B = 2 s on every stage, float32, and links that take no time unless said."""
    plan = stories.pipeline(stages, micro_batches)

    def priced(task: Task) -> Task:
        if task.kind not in FLOP:
            return task
        flop = FLOP[task.kind]
        parts = (DTypeFlop(dtype=DType.FLOAT32, flop=flop),)
        return replace(task, body=Fragment(ops=(), flop=flop, traffic_bytes=0, workspace_bytes=100, flop_by_dtype=parts))

    kinds = {stream.id: StreamKind.COMPUTE for stream in plan.streams if stream.id.startswith("compute")} | {"load": StreamKind.HOST}
    return replace(
        plan,
        tasks=tuple(map(priced, plan.tasks)),
        streams=tuple(replace(stream, kind=kinds.get(stream.id, StreamKind.LINK)) for stream in plan.streams),
        cluster=replace(plan.cluster, node=LinkSpec(**({"latency_s": 0.0, "bandwidth_bytes_per_s": 1e20} | link))),
    )


def saved(plan: Plan, tmp_path: Path) -> Path:
    save_plan(plan, str(tmp_path / "plan.json"))
    return tmp_path / "plan.json"


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 3), (4, 8)])
def test_the_bubble_of_equal_stages_is_p_minus_1_over_m_plus_p_minus_1(command: Command, tmp_path: Path, p: int, m: int):
    ran = command("simulate", saved(equal_stages(p, m), tmp_path), "--json")
    assert ran.json["bubble_share"] == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)
    assert ran.json["step_time_s"] == pytest.approx(3 * (m + p - 1))
    assert ran.json["throughput_per_s"] == pytest.approx(8 * m / (3 * (m + p - 1)))
    assert ran.json["settled"]
    assert ran.json["critical_cycle"]["period_s"] == pytest.approx(3 * (m + p - 1))


def test_mfu_is_flop_over_step_time_devices_and_the_rate_of_their_dtype(command: Command, tmp_path: Path):
    plan = equal_stages(3, 6)
    # Half of every backward pass in bfloat16, which this device computes four times as fast: B = 1 + 1/4 s.
    halves = (DTypeFlop(dtype=DType.BFLOAT16, flop=10**9), DTypeFlop(dtype=DType.FLOAT32, flop=10**9))
    device = replace(plan.cluster.device, rates=(Rate(dtype=DType.BFLOAT16, flop_per_s=4e9),))
    mixed = replace(
        plan,
        cluster=replace(plan.cluster, device=device),
        tasks=tuple(
            replace(task, body=replace(task.body, flop_by_dtype=halves))
            if isinstance(task.body, Fragment) and task.kind is TaskKind.BACKWARD
            else task
            for task in plan.tasks
        ),
    )
    ran = command("simulate", saved(mixed, tmp_path), "--json").json
    step_s = (1 + 1.25) * (6 + 3 - 1)
    assert ran["step_time_s"] == pytest.approx(step_s)
    assert ran["step_flop"] == {"float32": 3 * 6 * 2 * 10**9, "bfloat16": 3 * 6 * 10**9}
    assert ran["rate_flop_per_s"] == {"float32": 1e9, "bfloat16": 4e9}
    assert ran["mfu"] == pytest.approx((36e9 / 1e9 + 18e9 / 4e9) / (3 * step_s))
    assert ran["mfu_counts_recomputed"] is False


def test_work_that_the_backward_part_does_again_is_called_hfu(command: Command, tmp_path: Path):
    for recompute, name in (("none", "MFU"), ("blocks", "HFU")):
        path = tmp_path / f"{recompute}.json"
        assert command("plan", TINY, "--cluster", "local:2", "--mesh", "2", "--recompute", recompute, "-o", path).code == 0
        assert re.search(rf"^ *{name} ", command("simulate", path).out, re.MULTILINE)


def test_sends_beside_compute_count_as_communication_but_not_as_exposed(command: Command, tmp_path: Path):
    # Two stages, one micro-batch, links of 0.5 s: F0 [send] F1 B1 [back] B0; each rank sends once, and nobody computes meanwhile.
    ran = command("simulate", saved(equal_stages(2, 1, latency_s=0.5, bandwidth_bytes_per_s=1e20), tmp_path), "--json").json
    step_s = ran["step_time_s"]
    assert ran["communication_share"] == pytest.approx(0.5 / step_s)
    assert ran["exposed_communication_share"] == pytest.approx(0.5 / step_s)
    assert ran["bubble_share"] == pytest.approx(1 - 3 / step_s)


# --- against the trace ------------------------------------------------------------------------------------------------


def real_plans() -> list[Plan]:
    return [handmade.pipeline(), handmade.data_parallel(), stories.data_parallel(3), equal_stages(4, 6)]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("engine", [Engine.SIMPY, Engine.AUTO])
def test_peaks_and_step_ends_are_those_of_the_trace_and_categories_those_of_its_memory_curve(number: int, engine: Engine):
    plan = real_plans()[number]
    cost = AnalyticCost(plan.cluster)
    agrees_with_trace(plan, cost, 4, engine)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_on_random_live_plans_shares_and_categories_are_those_of_the_trace(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=data.draw(st.booleans())))
    agrees_with_trace(plan, data.draw(prices(plan, zero=False)), data.draw(st.integers(1, 5)), Engine.AUTO)


def agrees_with_trace(plan: Plan, cost: CostModel, steps: int, engine: Engine) -> None:
    forecasted = forecast(plan, cost, steps=steps, engine=engine)
    trace = simulate(plan, cost, steps=steps, engine=Engine.SIMPY)
    assert forecasted.step_ends_s == trace.step_ends_s(plan)
    assert forecasted.step_s == pytest.approx(trace.settled_step_s(plan), rel=1e-12)
    assert forecasted.num_acts == len(trace.acts)
    curves = memory_curves(plan, trace)
    for group in forecasted.rank_groups:
        for rank in group.ranks:
            assert group.peak_bytes == trace.peak_bytes[str(rank)]
            assert group.register_bytes == trace.register_bytes[str(rank)]
            curve = curves[rank]
            # Only acts that take no time may leave the categories open; else one of the moments of the peak looks like this.
            if group.categories_bytes is not None or all(act.duration_s > 0 for act in trace.acts):
                highest = [i for i, total in enumerate(curve.total_bytes) if total == curve.peak_bytes]
                assert group.categories_bytes in [{c: levels[i] for c, levels in curve.levels_bytes.items()} for i in highest]
            shares = by_hand(plan, trace, rank, forecasted.window_s)
            assert (group.bubble, group.communication, group.exposed) == pytest.approx(shares, abs=1e-9)


def by_hand(plan: Plan, trace: Trace, rank: int, window_s: tuple[float, float]) -> tuple[float, float, float]:
    """(bubble, communication, exposed): every instant between two events is looked at."""
    first, last = window_s
    if last <= first:
        return 1.0, 0.0, 0.0
    mine = [act for act in trace.acts if act.rank == rank]
    cuts = sorted({first, last, *(t for act in mine for t in (act.start_s, act.end_s) if first < t < last)})
    idle = moving = alone = 0.0
    for begin, end in itertools.pairwise(cuts):
        busy = {plan.stream[plan.task[act.task].stream].kind for act in mine if act.start_s <= begin and act.end_s >= end}
        computes, moves = StreamKind.COMPUTE in busy, bool(busy & {StreamKind.COLLECTIVE, StreamKind.LINK})
        idle += (end - begin) * (not computes)
        moving += (end - begin) * moves
        alone += (end - begin) * (moves and not computes)
    return idle / (last - first), moving / (last - first), alone / (last - first)


def test_a_share_that_is_counted_wrongly_would_be_found(monkeypatch: pytest.MonkeyPatch):
    plan = equal_stages(3, 4)
    monkeypatch.setattr("simulator.analysis.forecast._length", lambda spans: float((spans[:, 1] - spans[:, 0]).sum()) * 0.9)
    with pytest.raises(AssertionError):
        agrees_with_trace(plan, AnalyticCost(plan.cluster), 4, Engine.AUTO)


def test_memory_that_does_not_add_up_is_not_told(monkeypatch: pytest.MonkeyPatch):
    plan = handmade.pipeline()
    monkeypatch.setattr("simulator.analysis.peak_contents.PeakContents._begins", lambda self: self.played.end_s)
    categories = [group.categories_bytes for group in forecast(plan, AnalyticCost(plan.cluster)).rank_groups]
    assert None in categories


def test_equal_devices_are_played_once_and_stand_in_one_row(command: Command, tmp_path: Path):
    plan = stories.data_parallel(64)
    forecasted = forecast(plan, AnalyticCost(plan.cluster))
    assert forecasted.num_firings * 64 == forecasted.num_acts
    assert forecast(plan, AnalyticCost(plan.cluster), engine=Engine.SIMPY).num_firings == forecasted.num_acts
    ran = command("simulate", saved(plan, tmp_path), "--json").json
    assert [row["ranks"] for row in ran["devices"]] == [list(range(64))]
    assert len(ran["peak_bytes"]) == 64


# --- the screen -------------------------------------------------------------------------------------------------------


def test_the_screen_shows_the_figures_of_json(command: Command, tmp_path: Path):
    path = tmp_path / "plan.json"
    assert command("plan", "zoo:gpt?layers=2", "--cluster", "local:2", "--stages", "2", "--micro-batches", "4", "-o", path).code == 0
    facts, screen = command("simulate", path, "--json").json, command("simulate", path).out
    assert facts["source"] == "sim"
    assert facts["critical_cycle"]["kind"] == "theory"
    for figure in (
        show_s(facts["step_time_s"]),
        f"{facts['throughput_per_s']:,.1f} samples/s",
        f"{facts['tokens_per_s']:,.0f} tokens/s",
        f"{facts['mfu']:.1%}",
        f"{facts['bubble_share']:.1%}",
        f"{facts['communication_share']:.1%}",
        f"{facts['exposed_communication_share']:.1%} with no compute",
        *(show_bytes(row["peak_bytes"]) for row in facts["devices"]),
        *(show_bytes(size) for row in facts["devices"] for size in sorted(row["categories_bytes"].values())[-3:]),
        show_bytes(facts["device_memory_bytes"]),
        facts["critical_cycle"]["text"][:60],
        "predicted (sim)",
        "(theory)",
    ):
        assert figure in screen


def test_tokens_are_samples_times_positions_of_the_inputs(command: Command, tmp_path: Path):
    path = tmp_path / "plan.json"
    assert command("plan", "zoo:gpt?layers=1&seq=32", "--cluster", "local:1", "-o", path).code == 0
    facts = command("simulate", path, "--json").json
    assert facts["tokens_per_s"] == pytest.approx(32 * facts["throughput_per_s"])
    assert tokens_per_sample(handmade.pipeline()) is None


def test_sixteen_stages_with_noise_fit_one_screen(command: Command, tmp_path: Path):
    ran = command("simulate", saved(equal_stages(16, 4, latency_s=1e-3), tmp_path), "--noise", "0.1", "--runs", "10", "--seed", "3")
    lines = ran.out.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 160
    assert len([line for line in lines if re.match(r"\w+: \d+ ", line)]) == 16 or "more, --full shows them" in ran.out
    assert ran.err == ""


def test_json_names_carry_units(command: Command, tmp_path: Path):
    ran = command("simulate", saved(equal_stages(2, 2), tmp_path), "--noise", "0.1", "--runs", "10", "--json").json
    bare = {"plan_id", "source", "performer", "steps", "settled", "mfu", "mfu_counts_recomputed", "num_devices"}
    bare |= {"devices", "critical_cycle", "noise", "interval", "about"}
    units = ("_s", "_bytes", "_flop", "_share", "_per_s")
    assert all(name.endswith(units) for name in set(ran) - bare)
    assert {"low_s", "median_s", "high_s"} <= set(ran["noise"])


# --- noise, files, refusals, ends -------------------------------------------------------------------------------------


def test_the_interval_is_that_of_the_seeded_runs(command: Command, tmp_path: Path):
    plan = equal_stages(2, 3)
    noise = command("simulate", saved(plan, tmp_path), "--noise", "0.2", "--runs", "12", "--seed", "7", "--json").json["noise"]
    means_s = simulate_noisy(plan, AnalyticCost(plan.cluster), Noise(jitter=0.2, seed=7), runs=12).means_s
    assert (noise["low_s"], noise["median_s"], noise["high_s"]) == pytest.approx(tuple(np.quantile(means_s, [0.05, 0.5, 0.95])))
    assert noise["low_s"] < noise["high_s"]


def test_the_trace_is_written_and_agrees_with_the_screen(command: Command, tmp_path: Path):
    path = saved(equal_stages(2, 2, latency_s=0.1), tmp_path)
    facts = command("simulate", path, "-o", tmp_path / "sim.json", "--json").json
    plan, trace = load_trace(str(tmp_path / "sim.json"))
    assert trace.settled_step_s(plan) == facts["step_time_s"]
    assert trace.peak_bytes == facts["peak_bytes"]
    assert trace == regista.simulate(load_plan(str(path)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--runs", "20"], "--runs and --seed belong to --noise"),
        (["--seed", "1"], "--runs and --seed belong to --noise"),
        (["--noise", "0.1", "--runs", "9"], "9 runs say nothing .* ask for at least 10"),
        (["--noise", "3"], "jitter = 3.0"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(command: Command, tmp_path: Path, more: list[str], says: str):
    ran = command("simulate", saved(equal_stages(2, 2), tmp_path), *more)
    assert ran.code == 2
    assert re.search(says, ran.err)


def test_noisy_runs_of_too_many_acts_are_refused_with_the_number(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = equal_stages(2, 2)
    acts = 11 * 4 * sum(task.acts for task in plan.tasks)
    monkeypatch.setattr(outlook, "MOST_NOISY_ACTS", {True: acts - 1, False: acts - 1})
    ran = command("simulate", saved(plan, tmp_path), "--noise", "0.1", "--runs", "10")
    assert ran.code == 2
    assert f"are {acts:,} acts, more than {acts - 1:,}" in ran.err


def test_a_device_that_overflows_is_refused_with_its_bytes(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = equal_stages(2, 2)
    peak = max(simulate(plan, AnalyticCost(plan.cluster)).peak_bytes.values())
    small = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=peak - 1)))
    monkeypatch.setattr(
        "regista.verbs.showing.simulate.load_plan", lambda path: small
    )  # load_plan itself refuses what overflows at unit prices
    ran = command("simulate", "plan.json")
    assert ran.code == 2
    assert "SEMANTICS 5, law 5" in ran.err
    monkeypatch.setattr(
        "regista.verbs.showing.simulate.load_plan", lambda path: replace(small, cluster=replace(small.cluster, device=plan.cluster.device))
    )
    assert command("simulate", "plan.json").code == 0


def test_ctrl_c_ends_with_130_and_one_line(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outlook, "forecast", interrupted)
    ran = command("simulate", saved(equal_stages(2, 2), tmp_path))
    assert (ran.code, ran.out, ran.err) == (130, "", "regista simulate: interrupted\n")


def test_a_pace_that_cannot_be_found_is_left_out_in_words(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from planner.ir.errors import Unsupported

    def restless(*_: object, **__: object) -> None:
        raise Unsupported("streams ['x'] do not settle")

    monkeypatch.setattr(outlook, "steady_state", restless)
    path = saved(equal_stages(2, 2), tmp_path)
    assert "critical cycle: left out, streams ['x'] do not settle" in command("simulate", path).out
    assert command("simulate", path, "--json").json["critical_cycle"] == {"kind": "theory", "missing": "streams ['x'] do not settle"}


def test_a_plan_of_many_acts_is_looked_at_one_rank_per_placement(monkeypatch: pytest.MonkeyPatch):
    plan = equal_stages(3, 4)
    cost = AnalyticCost(plan.cluster)
    exact = look(plan, cost).pace
    monkeypatch.setattr(graph, "MANY_ACTS", 1)
    folded = look(plan, cost).pace
    assert folded.period_s == exact.period_s
    assert "one rank per placement" in folded.about
    assert sum(share for _, share, _ in folded.parts) == pytest.approx(1)
    assert compile_plan(plan, cost).ranks.num_classes == 3


def test_the_critical_cycle_of_too_many_acts_is_left_out_with_the_number(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = equal_stages(2, 2)
    acts = sum(task.acts for task in plan.tasks)
    monkeypatch.setattr(outlook, "MOST_CYCLE_ACTS", acts - 1)
    out = command("simulate", saved(plan, tmp_path)).out
    assert f"critical cycle: left out, {acts} acts per step are more than the {acts - 1}" in out
