"""Which ports each kind of run opens, and a pickle that a stranger puts there: nobody reads it."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import signal
from datetime import timedelta
from pathlib import Path

import handmade
import pytest
from ports import descendants, listening
from torch.distributed import DistError, TCPStore

from backend.launch.processes import run
from backend.launch.session import Session
from backend.memory.options import MemoryOptions
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*ranks on .* cores")]


def seen_during(plan: Plan, tmp_path: Path, **options: int | MemoryOptions) -> set[tuple[str, int]]:
    """Ports of this process, its fork server and its workers while they run."""
    before = listening(descendants(os.getpid()))
    seen: list[set[tuple[str, int]]] = []

    def look(step: int, loss: float) -> None:
        if not seen:
            seen.append(listening(descendants(os.getpid())) - before)

    run(plan, handmade.start(), handmade.batches(2), 150, workdir=tmp_path, on_progress=look, **options)  # type: ignore[arg-type]
    return seen[0]


@pytest.mark.representatives("pipeline with restarts")
@pytest.mark.parametrize(
    ("plan", "restarts"), [(handmade.pipeline(2), 0), (handmade.pipeline(2), 1)], ids=["pipeline", "pipeline with restarts"]
)
def test_a_run_without_collectives_opens_no_port(plan: Plan, restarts: int, tmp_path: Path) -> None:
    assert seen_during(plan, tmp_path, max_restarts=restarts) == set()


def test_a_session_opens_no_port() -> None:
    before = listening(descendants(os.getpid()))
    with Session(handmade.pipeline(2), handmade.start()) as session:
        session.step(handmade.batches(2)(0)).loss()
        assert listening(descendants(os.getpid())) - before == set()


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_run_with_collectives_opens_no_port(restarts: int, tmp_path: Path) -> None:
    assert seen_during(handmade.data_parallel(2, 2), tmp_path, max_restarts=restarts) == set()


@pytest.mark.thorough
def test_a_run_with_collectives_that_shares_no_memory_opens_ports_of_gloo_on_loopback_alone(tmp_path: Path) -> None:
    ports = seen_during(handmade.data_parallel(2, 2), tmp_path, memory=MemoryOptions(shared_memory=False))
    # Two ranks, each with the default group and the group of the axis.
    assert len(ports) == 4
    assert {address for address, _ in ports} == {"127.0.0.1"}


class Command:
    """When it is unpickled, a file appears."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.proof,)


class StartedAnew(Exception):
    """Ends the test's run."""


def test_a_pickle_that_a_stranger_puts_where_a_run_with_restarts_listens_is_never_read(tmp_path: Path) -> None:
    """The attack of issue 19: torch's rendezvous unpickled what lay in its store, which had no password, when it started workers anew."""
    proof, work = tmp_path / "proof", tmp_path / "work"
    work.mkdir()
    poison = base64.b64encode(pickle.dumps(Command(proof)))
    before = listening(descendants(os.getpid()))
    attacked: list[int] = []

    def attack(step: int, loss: float) -> None:
        if attacked and step == 0:
            raise StartedAnew
        if attacked:
            return
        attacked.append(step)
        (folder,) = work.iterdir()
        run_id = folder.name.split("-")[1]
        for host, port in listening(descendants(os.getpid())) - before:
            try:
                TCPStore(host, port, is_master=False, timeout=timedelta(seconds=3)).set(f"torch.rendezvous.{run_id}", poison)
            except (DistError, RuntimeError):
                continue
        os.kill(int((folder / "rank1.a0.pid").read_text()), signal.SIGKILL)

    with contextlib.suppress(StartedAnew, WorkerFailed):  # WorkerFailed: of the old code, which could not read its rendezvous any more
        run(handmade.pipeline(2), handmade.start(), handmade.batches(2), 30000, workdir=work, on_progress=attack, max_restarts=1)
    assert attacked
    assert not proof.exists()
