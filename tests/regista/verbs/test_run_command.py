"""What the verb 'run' shows while it goes and at its end."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import handmade
import pytest
from command_line import TINY, Command, commands
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import regista.api as api
from backend.monitor.heartbeat import MOST_ROWS, Heartbeat, HeartbeatReader, heartbeat_of, writing_heartbeats
from backend.ops.inductor import compiling, options
from planner.cost import ActPrice, MeasuredCost, act_key
from planner.ir.files import load_trace
from planner.ir.plan import Plan, StreamKind, TaskKind
from planner.ir.traces.trace import Act, Source, Trace
from regista.views.tables.live import LAST_HEARTBEATS, Watched, figures, watched
from regista.views.tables.verdict import bubble, predict, show_verdict, verdict

PIPE = handmade.pipeline(2)
DATA = handmade.data_parallel(2, 1)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def measured(plan: Plan, **about: str) -> MeasuredCost:
    """A table with 10 ms for every act."""
    price = ActPrice(task="", price_s=0.01, min_s=0.01, p10_s=0.01, median_s=0.01, samples=1)
    acts = {act_key(plan, task): replace(price, task=task.id) for task in plan.tasks}
    return MeasuredCost(plan_id=plan.plan_id, acts=acts, message_latency_s=0.0, act_overhead_s=0.0, about=about)


def as_run(plan: Plan, sim: Trace, slower: float = 1.0) -> Trace:
    """A run that did exactly what was predicted, or all of it more slowly."""
    acts = tuple(Act(a.task, a.rank, a.number, slower * a.ready_s, slower * a.start_s, slower * a.end_s) for a in sim.acts)
    return replace(sim, source=Source.RUN, performer="gloo", acts=acts)


def text(part: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Heartbeats.


def row(plan: Plan, task: str, number: int, start: int, end: int) -> tuple[int, int, int, int, int]:
    return [t.id for t in plan.tasks].index(task), number, start, start, end


def test_a_beat_counts_whole_acts_and_dates_the_steps() -> None:
    rows = [row(DATA, "forward", 0, 50, 150), row(DATA, "forward", 1, 200, 260), row(DATA, "fetch", 4, 300, 310)]
    heartbeat = heartbeat_of(DATA, 1, rows, 100, 400)
    assert heartbeat.busy_s == pytest.approx({"forward": 160e-9, "fetch": 10e-9})
    assert heartbeat.compute_s == pytest.approx(160e-9)
    assert heartbeat.ends_s == ((4, pytest.approx(310e-9)),)
    assert (heartbeat.rank, heartbeat.begin_s, heartbeat.end_s) == (1, pytest.approx(100e-9), pytest.approx(400e-9))


def test_a_run_that_saves_shows_its_plans_tasks_alone() -> None:
    """Saving is a task of the run that the plan does not have: its first long save ended the run with a KeyError."""
    watch = Watched(plan=DATA, steps=3)
    watch.on_heartbeat(Heartbeat(rank=0, begin_s=0.0, end_s=1.0, busy_s={"s0.save": 0.9, "forward": 0.5}, compute_s=0.5, ends_s=()))
    slowest = watch.facts().slowest
    assert slowest is not None and slowest[0] == "forward"


def test_heartbeats_are_read_as_they_were_written_and_hold_each_act_once(tmp_path: Path) -> None:
    import time

    rows: list[tuple[int, int, int, int, int]] = []
    reader, seen = HeartbeatReader(tmp_path), []
    with writing_heartbeats(DATA, 0, rows, tmp_path, period_s=0.02):
        for number in range(3):
            now = time.monotonic_ns()
            rows.append(row(DATA, "forward", number, now, now + 1000))
            until = time.monotonic() + 20
            while sum(b.busy_s.get("forward", 0.0) for b in seen) < (number + 0.9) * 1e-6:
                assert time.monotonic() < until
                seen += reader.new_heartbeats()
                time.sleep(0.005)
    assert sum(b.busy_s.get("forward", 0.0) for b in seen) == pytest.approx(3e-6)
    assert all(before.end_s == after.begin_s for before, after in zip(seen, seen[1:], strict=False))
    assert reader.new_heartbeats() == []


def test_a_beat_of_very_many_acts_counts_the_newest_over_their_own_time(tmp_path: Path) -> None:
    import time

    begin = time.monotonic_ns()
    rows = [row(DATA, "forward", n, begin + 10 * n, begin + 10 * n + 5) for n in range(3 * MOST_ROWS)]
    with writing_heartbeats(DATA, 0, rows, tmp_path, period_s=0.01):
        until, seen = time.monotonic() + 20, []
        while not seen:
            assert time.monotonic() < until
            seen = HeartbeatReader(tmp_path).new_heartbeats()
    assert seen[0].busy_s["forward"] == pytest.approx(5e-9 * MOST_ROWS)
    assert seen[0].begin_s == pytest.approx((begin + 10 * 2 * MOST_ROWS) * 1e-9)


# Live figures.


def test_live_figures_name_the_task_that_takes_most_of_the_busiest_stream() -> None:
    watch = Watched(plan=PIPE, steps=9)
    watch.on_heartbeat(Heartbeat(rank=0, begin_s=0.0, end_s=1.0, busy_s={"forward.0": 0.2, "backward.0": 0.3}, compute_s=0.5))
    watch.on_heartbeat(Heartbeat(rank=1, begin_s=0.0, end_s=1.0, busy_s={"forward.1": 0.5, "backward.1": 0.4}, compute_s=0.9))
    facts = watch.facts()
    assert facts.slowest == ("forward.1", 1, 0.5)
    # Rank 0 computes half of the time, rank 1 nine tenths of it.
    assert facts.waiting == pytest.approx((0.5 + 0.1) / 2)


def test_live_shares_are_those_of_the_last_beats_together() -> None:
    watch = Watched(plan=PIPE, steps=9)
    for number in range(LAST_HEARTBEATS):
        # Acts of 3 s, told in the beat in which they end.
        done = 3.0 if number % 4 == 3 else 0.0
        busy_s = {"forward.0": done} if done else {}
        watch.on_heartbeat(Heartbeat(rank=0, begin_s=float(number), end_s=number + 1.0, busy_s=busy_s, compute_s=done))
    facts = watch.facts()
    assert facts.slowest == ("forward.0", 0, 0.75)
    assert facts.waiting == pytest.approx(0.25)
    for number in range(LAST_HEARTBEATS, 2 * LAST_HEARTBEATS):
        watch.on_heartbeat(Heartbeat(rank=0, begin_s=float(number), end_s=number + 1.0, busy_s={}))
    assert (watch.facts().slowest, watch.facts().waiting) == (None, 1.0)


def test_the_wait_for_a_peer_in_a_collective_is_nobodys_work() -> None:
    reduce = next(task.id for task in DATA.tasks if task.kind is TaskKind.BOXING)
    watch = Watched(plan=DATA, steps=9)
    watch.on_heartbeat(Heartbeat(rank=0, begin_s=0.0, end_s=1.0, busy_s={"forward": 0.1, reduce: 0.85}))
    watch.on_heartbeat(Heartbeat(rank=1, begin_s=0.0, end_s=1.0, busy_s={"forward": 0.6, reduce: 0.05}))
    assert watch.facts().slowest == ("forward", 1, 0.6)


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=40))
def test_live_speed_is_the_median_of_the_last_steps(times: list[float]) -> None:
    from statistics import median

    watch = Watched(plan=DATA, steps=99)
    end_s, ends = 5.0, [(0, 5.0)]
    for step, time_s in enumerate(times):
        end_s += time_s
        ends.append((step + 1, end_s))
    watch.on_heartbeat(Heartbeat(rank=0, begin_s=0.0, end_s=1.0, busy_s={}, ends_s=tuple(ends[:3])))
    watch.on_heartbeat(Heartbeat(rank=1, begin_s=0.0, end_s=1.0, busy_s={}, ends_s=tuple(ends[:2])))  # the other rank has the loss, too
    watch.on_heartbeat(Heartbeat(rank=0, begin_s=1.0, end_s=2.0, busy_s={}, ends_s=tuple(ends[3:])))
    facts = watch.facts()
    assert facts.step_time_s == pytest.approx(median(times[-20:]))
    assert facts.samples_per_s == pytest.approx(DATA.batch_size / median(times[-20:]))


def test_without_a_terminal_there_are_plain_lines_and_when_quiet_none() -> None:
    for quiet in (False, True):
        console = Console(file=io.StringIO(), width=20)
        with watched(DATA, 3, quiet=quiet, console=console) as watch:
            watch(0, 2.5)
            watch(1, 1.5)
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue() == ("" if quiet else "step 1/3  loss 2.5000\n")
        assert figures(watch.facts()) == "step 2/3  loss 1.5000"


def test_on_a_terminal_a_bar_and_the_figures_are_drawn() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with watched(DATA, 3, quiet=False, console=console) as watch:
        watch(0, 2.5)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "step 1/3  loss 2.5000" in shown
    assert "━" in shown


# The table at the end.


@pytest.mark.parametrize("plan", [PIPE, DATA], ids=["pipeline", "data parallel"])
def test_a_run_that_goes_as_predicted_has_no_error_and_one_twice_as_slow_has_minus_half(plan: Plan) -> None:
    prediction = predict(plan, measured(plan))
    exact = verdict(plan, prediction, as_run(plan, prediction.trace))
    slow = verdict(plan, prediction, as_run(plan, prediction.trace, 2.0))
    # The simulation's figure is an inner step, the run's the median after the warm-up: they differ while a pipeline fills.
    assert slow.comparison.step_time_s.measured == pytest.approx(2 * exact.comparison.step_time_s.measured)
    for kind, pair in exact.comparison.kinds.items():
        assert pair.relative_error == pytest.approx(0.0), kind
        assert slow.comparison.kinds[kind].relative_error == pytest.approx(-0.5), kind
    # A share has no unit: it is the same, however slow.
    assert slow.bubble.measured == pytest.approx(exact.bubble.measured)
    assert exact.memory.relative_error == 0.0


def test_the_bubble_is_the_time_without_compute() -> None:
    # Two steps of: rank 0 computes 6 of 10 s, rank 1 computes 10 of 10 s, whatever its collectives do meanwhile.
    compute = next(t for t in DATA.tasks if t.kind is TaskKind.FORWARD)
    reduce = next(t for t in DATA.tasks if t.kind is TaskKind.BOXING)
    assert DATA.stream[compute.stream].kind is StreamKind.COMPUTE
    acts = []
    for step in range(3):
        begin = 10.0 * step
        for rank, busy_s in ((0, 6.0), (1, 10.0)):
            acts.append(Act(compute.id, rank, step, begin, begin, begin + busy_s))
            acts.append(Act(reduce.id, rank, step, begin, begin + 7, begin + 10))
    trace = Trace(source=Source.RUN, performer="gloo", plan_id=DATA.plan_id, steps=3, acts=tuple(acts))
    assert bubble(DATA, trace, 1) == pytest.approx(0.2)
    assert bubble(DATA, trace, 0) == pytest.approx(0.2)


def test_prices_of_other_machines_are_told_instead_of_an_error() -> None:
    elsewhere = replace(PIPE, cluster=replace(PIPE.cluster, device=replace(PIPE.cluster.device, kind="A100-SXM4-80GB")))
    for plan, cost, apart in (
        (PIPE, None, ""),
        (elsewhere, None, "the prices are those of A100-SXM4-80GB in handmade; it ran on CPU cores"),
        (elsewhere, measured(elsewhere), ""),
        (PIPE, measured(PIPE, cpu="an abacus"), "the table was measured on an abacus, this machine has"),
        (
            replace(PIPE, cluster=replace(PIPE.cluster, source="regista calibrate: an abacus, 10 cores")),
            None,
            "cluster handmade was calibrated on an abacus, 10 cores; this machine has",
        ),
    ):
        prediction = predict(plan, cost)
        assert prediction.incomparable.startswith(apart)
        assert bool(prediction.incomparable) == bool(apart)
        shown = text(show_verdict(verdict(plan, prediction, as_run(plan, prediction.trace, 2.0))))
        line = next(line for line in shown.splitlines() if "step time" in line)
        assert ("%" in line) == (not apart)
        assert (f"no error is given: {apart}" in shown) == bool(apart)
        assert ("regista calibrate PLAN" in shown) == (cost is None)
    assert predict(PIPE, None, num_nodes=2).incomparable.startswith("the prices are those of 1 nodes of handmade; it ran on 2")


def test_the_table_has_a_row_for_every_figure_that_is_promised() -> None:
    prediction = predict(PIPE, measured(PIPE))
    shown = text(show_verdict(verdict(PIPE, prediction, as_run(PIPE, prediction.trace))))
    rows = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    kinds = [f"{kind}, busiest rank" for kind in dict.fromkeys(task.kind.value for task in PIPE.tasks)]
    assert rows == ["step time", "throughput", *kinds, "bubble, mean of ranks", "registers and state, fullest rank"]
    for column in ("predicted (sim)", "measured (run)", "error"):
        assert column in shown


# The verb.


def test_options_of_real_processes_are_refused_beside_the_reference(command: Command, tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    for option, value in (("--timeout", "3"), ("--cost", plan)):
        ran = command("run", plan, "--performer", "reference", option, value)
        assert ran.code == 2
        assert f"{option} " in ran.err
    ran = command("run", plan, "--cost", tmp_path / "none.json")
    assert (ran.code, "none.json" in ran.err) == (2, True)


def test_what_several_hosts_need_and_cannot_do_is_said_before_anything_starts(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, open_to_all, short = tmp_path / "p.json", tmp_path / "open", tmp_path / "short"
    for path, mode in ((open_to_all, 0o644), (short, 0o600)):
        path.write_text("short")
        path.chmod(mode)
    monkeypatch.delenv("REGISTA_SECRET", raising=False)
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    meet = ("--nnodes", "2", "--rdzv", "127.0.0.1:29999")
    for arguments, says in (
        ([*meet], "several hosts need a secret that they share, so that no stranger joins them: give --secret FILE or REGISTA_SECRET"),
        ([*meet, "--secret", tmp_path / "none"], "cannot be read (No such file or directory)"),
        ([*meet, "--secret", open_to_all], "can be read by others (mode 644); chmod 600"),
        ([*meet, "--secret", short], "has 5 bytes; 16 to 4096 are taken"),
        (["--secret", short], "--secret is for several hosts"),
    ):
        ran = command("run", plan, *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err
    monkeypatch.setenv("REGISTA_SECRET", "0" * 16)
    for arguments, says in (
        (["--rdzv", "h:1"], "--rdzv is for several hosts; add --nnodes N"),
        (["--nnodes", "1", "--node-rank", "0"], "--node-rank is for several hosts"),
        (["--nnodes", "2"], "--nnodes 2 needs --rdzv HOST:PORT"),
        ([*meet], "has 2 ranks for 1 nodes of local-2, 2 devices each, not for 2 nodes with 1 each"),
        ([*meet, "--node-rank", "-1"], "ranks count from 0"),
        ([*meet, "--waiting", "sleep"], "--waiting: not carried out on several hosts yet"),
        ([*meet, "--kernels", "compiled"], "--kernels: not carried out on several hosts yet"),
        ([*meet, "--performer", "reference"], "--nnodes belongs to a run on real processes"),
    ):
        ran = command("run", plan, *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err


@pytest.mark.processes
def test_a_run_ends_with_one_table_of_predicted_and_measured(command: Command, tmp_path: Path) -> None:
    plan, cost = tmp_path / "p.json", tmp_path / "c.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    ran = command("run", plan, "--steps", "4")
    assert ran.code == 0, ran.err
    assert "predicted with prices of cluster local-2" in ran.out
    assert ran.out.count("───\n") == 1
    assert "step 1/4  loss " in ran.err
    from planner.cost import save_cost
    from planner.ir.files import load_plan

    save_cost(measured(load_plan(str(plan))), str(cost))
    ran = command("run", plan, "--steps", "4", "--cost", cost, "--json")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    prediction = ran.json["prediction"]
    assert prediction["prices_measured"] is True
    assert prediction["kinds"]["forward"]["predicted"] == pytest.approx(0.01)
    assert prediction["step_time_s"]["measured"] == pytest.approx(ran.json["step_time_s"])
    sim = api.simulate(load_plan(str(plan)), measured(load_plan(str(plan))))
    assert prediction["step_time_s"]["predicted"] == sim.settled_step_s(load_plan(str(plan)))


def test_compiled_kernels_are_an_option_of_the_command_line_and_what_was_left_out_is_on_the_screen(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is compiled: here nothing, as there is no such compiler."""

    def by_nobody(*_: object) -> NoReturn:
        raise RuntimeError("no compiler in this test")

    monkeypatch.setattr(compiling, "by_inductor", by_nobody)
    monkeypatch.setattr(compiling, "_COMPILED", {})
    monkeypatch.setattr(options, "lacking", lambda devices: [])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plan = tmp_path / "p.json"
    assert command("plan", TINY, "--cluster", "local:1", "-o", plan).code == 0
    ran = command("run", plan, "--steps", "2", "--performer", "threads", "--kernels", "compiled")
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert "compiled fragments: 0 of 2, 0 of them from the cache; op by op: s0.fwd.0: RuntimeError: no compiler in this test" in said
    assert "2 fragments could not be compiled and were performed op by op" in " ".join(ran.err.split())


def test_graphs_look_ahead_and_numerics_are_options_of_the_command_line(command: Command, tmp_path: Path) -> None:
    """They stood in the runtime of devices with streams, and nobody could ask for them."""
    plan, run = tmp_path / "p.json", tmp_path / "run.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    asked = ("--performer", "threads", "--device", "fake", "--graphs", "--ahead", "2", "--tf32", "--deterministic")
    assert command("run", plan, "--steps", "4", *asked, "-o", run).code == 0
    _, trace = load_trace(str(run))
    assert int(trace.about["graphs"].split()[0]) > 0
    assert trace.about["numerics"] == "tf32 true, deterministic true"
    assert "memory of fake:0" in trace.about
