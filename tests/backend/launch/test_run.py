"""Performing Plans on real processes: same values, lawful traces, and an end to every fault."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import handmade
import pytest
import torch
from python_path import PYTHON_PATH
from torch.distributed import HashStore

from backend.devices.cores import Waiting
from backend.launch.attempts import run_workers
from backend.launch.processes import run
from backend.launch.workers import fork_server_client
from backend.measure.profile import profile
from backend.reference import perform
from backend.run_folder.files import Options
from backend.run_folder.outcome import Outcome
from backend.worker.process import agree
from planner.ir.errors import DeadLock, InvalidProgram, Mismatch, Unsupported, WorkerFailed
from planner.ir.graph import Ref
from planner.ir.plan import Fragment, Plan
from planner.ir.traces.held import consecutive
from planner.ir.traces.trace import check_trace

pytestmark = pytest.mark.processes
STEPS = 3


def children_of(parent: int) -> set[int]:
    """Live processes whose parent it is."""
    children = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, ppid = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            except OSError:
                continue
            if int(ppid) == parent and state != "Z":
                children.add(int(entry.name))
    return children


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A folder that must be empty, and no worker alive, when the test ends."""
    folder = tmp_path / f"regista-parent-{os.getpid()}"
    folder.mkdir()
    return folder


def assert_nothing_is_left(workdir: Path) -> None:
    assert children_of(fork_server_client().server_pid) == set()
    assert list(workdir.iterdir()) == []


def test_workers_do_not_see_a_variable_that_was_unset_since_the_fork_server_began(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fork_server_client()
    os.kill(old.server_pid, signal.SIGKILL)
    while old.usable:
        time.sleep(0.01)
    monkeypatch.setenv("PYTHONPATH", PYTHON_PATH)  # where told_environment lies
    monkeypatch.setenv("PLANTED", "set")
    run_workers(tmp_path, "told_environment", 1, Options(run_id="first", steps=1))
    assert (tmp_path / "told").read_text() == "set"
    monkeypatch.delenv("PLANTED")
    run_workers(tmp_path, "told_environment", 1, Options(run_id="second", steps=1))
    assert (tmp_path / "told").read_text() == "unset"


def assert_same(measured: Outcome, reference: Outcome) -> None:
    torch.testing.assert_close(torch.tensor(measured.losses), torch.tensor(reference.losses))
    for name, value in reference.states.items():
        torch.testing.assert_close(measured.states[name], value)
    for name, value in reference.gradients.items():
        torch.testing.assert_close(measured.gradients[name], value)


@pytest.mark.representatives("pipeline")
@pytest.mark.parametrize(
    ("plan", "micro_batches"),
    [(handmade.data_parallel(2, 2), 2), (handmade.pipeline(3), 3), (handmade.data_parallel(1, 2), 2)],
    ids=["data parallel", "pipeline", "one rank"],
)
def test_a_run_on_real_processes_equals_the_reference(plan: Plan, micro_batches: int, workdir: Path) -> None:
    seen: list[tuple[int, float]] = []
    batch = handmade.batches(micro_batches)
    before = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings():
        if len(os.sched_getaffinity(0)) < 2:
            warnings.simplefilter("ignore")
        report = lambda step, loss: seen.append((step, loss))  # noqa: E731
        outcome = run(plan, handmade.start(), batch, STEPS, gradients=True, timeout_s=20, workdir=workdir, on_progress=report)
    assert_same(outcome, perform(plan, handmade.start(), batch, STEPS, gradients=True))
    check_trace(plan, outcome.trace)
    assert seen == list(enumerate(outcome.losses))
    assert outcome.trace.performer == "gloo"
    assert outcome.trace.about["omp_threads"] == "1"
    assert signal.getsignal(signal.SIGINT) is before
    assert_nothing_is_left(workdir)


def test_a_trace_of_some_steps_holds_their_acts_all_losses_and_no_others(workdir: Path) -> None:
    plan, steps = handmade.pipeline(2), 12
    outcome = run(plan, handmade.start(), handmade.batches(2), steps, workdir=workdir, trace_steps="first:2,every:5,last:3")
    trace, held = outcome.trace, {0, 1, 4, 9, 10, 11}
    assert trace.held_steps == ((0, 2), (4, 5), (9, 12))
    check_trace(plan, trace)
    assert {act.number // plan.task[act.task].acts for act in trace.acts} == held
    assert len(trace.losses) == steps
    part = consecutive(plan, trace)
    check_trace(plan, part)
    assert part.steps == 3
    with pytest.raises(Unsupported, match="every:13 name no step of a run of 12 steps"):
        run(plan, handmade.start(), handmade.batches(2), steps, workdir=workdir, trace_steps="every:13")


@pytest.mark.parametrize("waiting", Waiting)
def test_how_workers_wait_changes_no_number_and_the_trace_says_it(workdir: Path, waiting: Waiting) -> None:
    plan = handmade.pipeline(2)
    outcome = run(plan, handmade.start(), handmade.batches(2), STEPS, gradients=True, workdir=workdir, waiting=waiting)
    assert_same(outcome, perform(plan, handmade.start(), handmade.batches(2), STEPS, gradients=True))
    check_trace(plan, outcome.trace)
    own_cores = waiting is Waiting.AUTO and len(os.sched_getaffinity(0)) >= plan.num_ranks
    assert ("cores of its own" in outcome.trace.about["waiting"]) == own_cores


def test_more_ranks_than_cores_is_said_and_still_right(workdir: Path) -> None:
    plan, ranks = handmade.pipeline(3, width=2), 4
    if len(os.sched_getaffinity(0)) >= ranks:
        pytest.skip("this host has a core for every rank")
    with pytest.warns(UserWarning, match="4 ranks on"):
        outcome = run(plan, handmade.start(), handmade.batches(3), STEPS, timeout_s=30, workdir=workdir)
    assert_same(outcome, perform(plan, handmade.start(), handmade.batches(3), STEPS))
    check_trace(plan, outcome.trace)
    assert outcome.trace.about["oversubscribed"] == "yes"


def forever(micro_batches: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """One batch for all of very many steps; it is stored once."""
    same = handmade.batches(micro_batches)(0)
    return lambda step: same


def _signal_rank(workdir: Path, rank: int, number: signal.Signals) -> Callable[[int, float], None]:
    def at_step(step: int, loss: float) -> None:
        if step == 5:
            (pid,) = workdir.glob(f"*/rank{rank}.*.pid")
            os.kill(int(pid.read_text()), number)

    return at_step


@pytest.mark.representatives("gloo peer")
@pytest.mark.parametrize("plan", [handmade.data_parallel(2, 2), handmade.pipeline(2)], ids=["gloo peer", "socket peer"])
def test_a_killed_worker_is_named_and_ends_the_run(plan: Plan, workdir: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(WorkerFailed, match="rank 1 was killed by SIGKILL"):
        run(plan, handmade.start(), forever(2), 20000, workdir=workdir, on_progress=_signal_rank(workdir, 1, signal.SIGKILL))
    assert time.monotonic() - begin < 30
    assert_nothing_is_left(workdir)


def test_a_stopped_worker_ends_the_run_within_the_timeout(workdir: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"rank 0 failed.*ranks \[1\] did not react"):
        run(
            handmade.pipeline(2),
            handmade.start(),
            forever(2),
            20000,
            timeout_s=3,
            workdir=workdir,
            on_progress=_signal_rank(workdir, 1, signal.SIGSTOP),
        )
    assert time.monotonic() - begin < 20
    assert_nothing_is_left(workdir)


def test_an_exception_in_a_kernel_names_rank_task_and_micro_batch(workdir: Path) -> None:
    plan = handmade.pipeline(2)
    task = plan.task["forward.1"]
    assert isinstance(task.body, Fragment)
    first = replace(task.body.ops[0], target="aten.view.default", args=(Ref("h"), (4, 4)))
    broken = replace(task, body=replace(task.body, ops=(first, *task.body.ops[1:])))
    plan = replace(plan, tasks=tuple(broken if t.id == task.id else t for t in plan.tasks))
    with pytest.raises(WorkerFailed, match=r"rank 1 failed in task forward\.1 \(act 0, micro-batch 0\).*invalid for input of size"):
        run(plan, handmade.start(), handmade.batches(2), 2, workdir=workdir)
    assert_nothing_is_left(workdir)


def test_a_fault_in_the_callers_progress_function_comes_back(workdir: Path) -> None:
    def stop(step: int, loss: float) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        run(handmade.pipeline(2), handmade.start(), forever(2), 20000, workdir=workdir, on_progress=stop)
    assert_nothing_is_left(workdir)


def test_ranks_with_different_plans_refuse_to_start() -> None:
    store = HashStore()
    plan = handmade.pipeline(2)
    store.set("plan/1", f"plan {handmade.pipeline(3).plan_id}, torch {torch.__version__}")
    with pytest.raises(Mismatch, match=r"rank 0 holds plan .*, rank 1 holds plan"):
        agree(store, plan, 0, 2)
    with pytest.raises(Mismatch, match="3 workers were started for a plan of 2 ranks"):
        agree(store, plan, 0, 3)


def test_what_can_be_refused_is_refused_before_anything_starts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("backend.launch.attempts.fork_server_client", lambda: started.append("a fork server"))
    plan = handmade.data_parallel(2, 2)
    with pytest.raises(InvalidProgram):
        run(plan, handmade.start(), handmade.batches(3), 1, workdir=workdir)
    with pytest.raises(InvalidProgram, match="at least 1 step"):
        run(plan, handmade.start(), handmade.batches(2), 0, workdir=workdir)
    # The gradients' collective is to wait for the loss, but stands before it in their stream's order.
    reduce = plan.task["reduce.grads"]
    waits = replace(reduce, consumes=(*reduce.consumes, *plan.task["fetch"].consumes))
    tied = replace(
        plan,
        streams=tuple(replace(s, order=s.order[::-1]) for s in plan.streams),
        tasks=tuple(waits if t is reduce else t for t in plan.tasks),
    )
    with pytest.raises(DeadLock):
        run(tied, handmade.start(), handmade.batches(2), 1, workdir=workdir)
    assert not started
    assert_nothing_is_left(workdir)


PARENT = """
import sys, handmade
from backend import run
def report(step, loss):
    if step == 0:
        print("going", flush=True)
same = handmade.batches(2)(0)
try:
    run(handmade.pipeline(2), handmade.start(), lambda step: same, 10**5, workdir=sys.argv[1], on_progress=report, timeout_s=5)
except KeyboardInterrupt:
    sys.exit(42)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 42), (signal.SIGKILL, -9)])
def test_no_worker_outlives_its_parent(number: signal.Signals, code: int, workdir: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(workdir)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": PYTHON_PATH}
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "going\n"
    (server,) = children_of(parent.pid)
    workers = children_of(server)
    assert len(workers) == 2
    parent.send_signal(number)
    assert parent.wait(15) == code
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in (server, *workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in (server, *workers) if Path(f"/proc/{pid}").exists()]
    assert list(workdir.iterdir()) == []


@pytest.mark.representatives("run")
@pytest.mark.parametrize("mode", ["isolated", "run"])
def test_a_profile_has_every_task_on_every_rank(mode: str, workdir: Path) -> None:
    plan = handmade.pipeline(3)
    measured = profile(plan, handmade.start(), handmade.batches(3), rounds=5, warmup=1, mode=mode, workdir=workdir)  # type: ignore[arg-type]
    wanted = {(task.id, rank) for task in plan.tasks for rank in plan.ranks_of(task)}
    assert {(task, rank) for task, by_rank in measured.tasks.items() for rank in by_rank} == wanted
    for by_rank in measured.tasks.values():
        for spread in by_rank.values():
            assert 0 < spread.min_s <= spread.p10_s <= spread.median_s < 1
            assert spread.n in (5, 15)
    assert measured.overheads["message_remote"].n > 0
    assert_nothing_is_left(workdir)


def spoiled(micro_batches: int, value: float) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches of which the last sample of step 2 holds ``value``."""
    good = handmade.batches(micro_batches)

    def batch(step: int) -> tuple[torch.Tensor, ...]:
        tensors = [tensor.clone() for tensor in good(step)]
        if step == 2:
            tensors[0][-1] = value
        return tuple(tensors)

    return batch


def test_a_loss_that_is_no_number_names_rank_task_micro_batch_and_the_first_bad_value(workdir: Path) -> None:
    plan = handmade.pipeline(2)
    where = r"rank 1 failed in task forward\.1 \(act 5, micro-batch 1\): the loss is "
    with pytest.raises(WorkerFailed, match=where + r"nan: h \(tensor 0 of regst h@s1\) came in with nan in \d+ of"):
        run(plan, handmade.start(), spoiled(2, float("nan")), 5, workdir=workdir)
    with pytest.raises(WorkerFailed, match=where + r"inf: op \S+ \(.*made infinity in \d+ of \d+ elements of finite values"):
        run(plan, handmade.start(), spoiled(2, 1e30), 5, workdir=workdir)
    outcome = run(plan, handmade.start(), spoiled(2, float("nan")), 5, workdir=workdir, allow_nan=True)
    assert [math.isfinite(loss) for loss in outcome.losses] == [True, True, False, False, False]
    assert_nothing_is_left(workdir)


@pytest.mark.thorough
def test_a_launcher_that_sleeps_loses_its_workers_and_says_so(workdir: Path) -> None:
    script = PARENT.replace("except KeyboardInterrupt:", "except Exception as error:").replace("sys.exit(42)", "sys.exit(str(error))")
    command = [sys.executable, "-c", script, str(workdir)]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": PYTHON_PATH}
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "going\n"
    (server,) = children_of(parent.pid)
    assert len(children_of(server)) == 2
    parent.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while children_of(server) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not children_of(server)
    parent.send_signal(signal.SIGCONT)
    _, said = parent.communicate(timeout=30)
    assert parent.returncode == 1
    assert "this process did not run for" in said
    assert list(workdir.iterdir()) == []
