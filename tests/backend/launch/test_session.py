"""Asynchronous control: steps are asked for one by one, losses are waited for one by one, and nothing runs in a critical section."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import handmade
import pytest
import torch

from backend.initial.values import Box, Given
from backend.launch.processes import run
from backend.launch.session import Session
from backend.launch.workers import fork_server_client
from backend.reference import perform
from planner.ir.errors import InvalidPlan, InvalidProgram, Unsupported, WorkerFailed
from planner.ir.plan import Plan
from planner.ir.tensor import TensorType
from planner.ir.traces.trace import check_trace

pytestmark = pytest.mark.processes
PLANS = [handmade.data_parallel(2, 2), handmade.pipeline(2)]
IDS = ["data parallel", "pipeline"]


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Path]:
    """Empty when the test ends, and no worker left."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    server = fork_server_client().server_pid
    assert not [p for p in Path("/proc").glob("[0-9]*/stat") if _parent_of(p) == server]


def _parent_of(path: Path) -> int:
    try:
        state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return -1
    return -1 if state == "Z" else int(parent)


@pytest.mark.representatives("pipeline")
@pytest.mark.parametrize("plan", PLANS, ids=IDS)
def test_steps_of_a_session_are_bit_equal_to_those_of_a_run(plan: Plan, workdir: Path) -> None:
    batches = handmade.batches(2)
    whole = run(plan, handmade.start(), batches, 5, gradients=True, workdir=workdir)
    with Session(plan, handmade.start(), gradients=True, workdir=workdir) as session:
        steps = [session.step(batches(number)) for number in range(5)]
        losses = tuple(step.loss() for step in steps)
    assert session.outcome is not None
    assert losses == whole.losses == session.outcome.losses
    for name, value in whole.states.items():
        assert torch.equal(session.outcome.states[name], value)
    for name, value in whole.gradients.items():
        assert torch.equal(session.outcome.gradients[name], value)
    check_trace(plan, session.outcome.trace)


def test_a_step_is_handed_back_before_it_is_done_and_python_goes_on(workdir: Path) -> None:
    plan, batches = handmade.pipeline(2), handmade.batches(2)
    with Session(plan, handmade.start(), ahead=50, workdir=workdir) as session:
        first = session.step(batches(0)).loss()
        workers = [int(path.read_text()) for path in workdir.glob("*/rank*.pid")]
        assert len(workers) == plan.num_ranks
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        steps = [session.step(batches(number)) for number in range(1, 50)]
        assert not any(step.done for step in steps), "nobody can have done them"
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        last = steps[-1].loss()
        assert all(step.done for step in steps)
        losses = (first, *(step.loss() for step in steps))
    assert session.outcome is not None
    assert last == losses[-1] and losses == session.outcome.losses


def test_no_more_steps_are_unfinished_than_ahead_allows(workdir: Path) -> None:
    with Session(handmade.pipeline(2), handmade.start(), ahead=2, workdir=workdir) as session:
        steps = []
        for number in range(20):
            steps.append(session.step(handmade.batches(2)(number)))
            assert sum(not step.done for step in steps) <= 2


@pytest.mark.representatives("pipeline")
@pytest.mark.parametrize("plan", PLANS, ids=IDS)
def test_between_steps_states_are_those_after_the_last_step_and_may_be_replaced(plan: Plan, workdir: Path) -> None:
    batches = handmade.batches(2)
    after_two = perform(plan, handmade.start(), batches, 2).states
    with Session(plan, handmade.start(), workdir=workdir) as session:
        for number in range(2):
            session.step(batches(number))
        with session.between_steps() as paused:
            seen = paused.read()
            paused.write(handmade.start())
            again = paused.read(list(handmade.start()))
        losses = [session.step(batches(number)).loss() for number in range(2)]
    for name, value in after_two.items():
        torch.testing.assert_close(seen[name], value)
    for name, value in again.items():
        assert torch.equal(value, handmade.start()[name])
    assert tuple(losses) == session.outcome.losses[:2]  # type: ignore[union-attr]


def test_a_killed_worker_ends_the_session_and_every_wait(workdir: Path) -> None:
    session = Session(handmade.pipeline(2), handmade.start(), workdir=workdir, timeout_s=10)
    session.step(handmade.batches(2)(0)).loss()
    (pid,) = workdir.glob("*/rank1.*.pid")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    begin = time.monotonic()
    go_on = lambda: [session.step(handmade.batches(2)(number)).loss() for number in range(1, 100)]  # noqa: E731
    for doomed in (go_on, session.close):
        with pytest.raises(WorkerFailed, match="rank 1 was killed by SIGKILL"):
            doomed()
    assert time.monotonic() - begin < 20


def test_a_fault_in_the_users_code_ends_the_workers(workdir: Path) -> None:
    def train() -> None:
        with Session(handmade.pipeline(2), handmade.start(), workdir=workdir) as session:
            session.step(handmade.batches(2)(0))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()


class OwnValues:
    """A source of values that no worker could make again."""

    def type_of(self, name: str) -> TensorType | None:
        return Given(handmade.start()).type_of(name)

    def part(self, name: str, box: Box) -> torch.Tensor:
        return Given(handmade.start()).part(name, box)


def test_a_session_whose_values_cannot_be_sent_leaves_no_folder(workdir: Path) -> None:
    with pytest.raises(Unsupported, match="OwnValues cannot be sent to processes"):
        Session(handmade.pipeline(2), OwnValues(), workdir=workdir)


def test_what_does_not_fit_is_refused_and_the_session_goes_on(workdir: Path) -> None:
    with Session(handmade.pipeline(2), handmade.start(), workdir=workdir) as session:
        with pytest.raises(InvalidProgram):
            session.step(handmade.batches(3)(0))
        with session.between_steps() as paused, pytest.raises(InvalidPlan, match="no state nobody"):
            paused.read(["nobody"])
        name = next(iter(handmade.start()))
        with session.between_steps() as paused, pytest.raises(InvalidPlan, match=f"state {name} is"):
            paused.write({name: torch.zeros(1)})
        assert session.step(handmade.batches(2)(0)).loss() > 0
    with pytest.raises(InvalidProgram, match="closed"):
        session.step(handmade.batches(2)(0))
