"""One run, one signal: a run in a process of its own, a process of it that meets the signal, and what is left after.

All processes of a run work in its folder, and by that they are found, whoever their parent is by then.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import backend.launch.attempts
import backend.launch.meeting
import backend.launch.nodes
from backend import run
from backend.checkpoint import SaveRequest, resume_point, verify
from backend.launch import HostWork, Nodes, run_elastic
from planner.frontend import Program
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan

__all__ = ["EVERY", "LIMIT_S", "SIGNALS", "STEPS", "WAYS", "End", "Row", "Subject", "perform", "try_once"]

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV)
WAYS = ("one host", "one host, 2 restarts", "two hosts", "elastic")
_SEVERAL, _AGAIN = ("two hosts", "elastic"), ("one host, 2 restarts", "elastic")
STEPS, EVERY = 480, 40
TIMEOUT_S = 4.0
SETTLE_S = 2.0
LIMIT_S = 12.0
"""From the signal to the end of everybody: the timeout, and room to notice, to end, and to start again on a busy machine."""
_MOST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a run ended.   first_step: of ``losses``.   hosts: that performed the last of it."""

    losses: Sequence[float]
    states: Mapping[str, Tensor]
    first_step: int = 0
    hosts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is run: a Plan with its values and data, and what undisturbed runs of it end with.

    alone: the Plan for one host of two.   undisturbed: the losses and states of a run.   after: step -> those of one that went on there with ``alone``.
    """

    name: str
    plan: Plan
    alone: Plan
    program: Program
    undisturbed: End | None = None
    after: Mapping[int, End] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """at_s: of the signal, after the run's start.   end: finished, refused (in our words) or died (with the launcher).

    ended_s: from the signal to the end of everybody who was not stopped.   left: processes that lived after LIMIT_S.
    folders: of runs, left.   equal: the run, or what goes on from its newest checkpoint, ends with the last bit of an undisturbed run.
    """

    number: int
    way: str
    plan: str
    signal: str
    victim: str
    at_s: float
    end: str
    ended_s: float
    left: int
    folders: int
    equal: str
    says: str


def perform(subject: Subject, folder: Path, way: str, port: int = 0, *, plan: Plan | None = None, steps: int = STEPS) -> End | None:
    """The run of this launcher; None: another host has its end.

    Args:
        plan: on one host, instead of the subject's.
    """
    program = subject.program
    backend.launch.attempts.SILENCE_S = backend.launch.nodes.SILENCE_S = TIMEOUT_S
    backend.launch.meeting.SETTLE_S = backend.launch.meeting.AGAIN_SETTLE_S = SETTLE_S
    saves, work = folder / "saves", folder / "work"
    micro_batches = subject.plan.micro_batches
    if way in _SEVERAL:
        least = 1 if way == "elastic" else 2
        nodes = Nodes(count=2, least=least, rendezvous=f"127.0.0.1:{port}", secret=bytes(32), join_timeout_s=8.0)
        state, batches = program.initial_state(micro_batches), program.batches(micro_batches)
        cluster = replace(subject.plan.cluster, num_nodes=2, devices_per_node=1, nic=subject.plan.cluster.node)
        works = {
            1: HostWork(plan=subject.alone, state=state, batches=batches),
            2: HostWork(plan=replace(subject.plan, cluster=cluster), state=state, batches=batches),
        }
        request = SaveRequest(folder=str(saves), every=EVERY, keep=3)
        restarts = 1 if way == "elastic" else 0
        performed = run_elastic(works, steps, nodes, timeout_s=TIMEOUT_S, workdir=work, checkpoint=request, max_restarts=restarts)
        outcome, hosts = performed.outcome, performed.hosts
        if outcome is None:
            return None
        return End(losses=outcome.losses, states=outcome.states, first_step=outcome.first_step, hosts=hosts)
    point = resume_point(str(saves)) if saves.exists() else None
    first = 0 if point is None else point.steps
    outcome = run(
        plan or subject.plan,
        program.initial_state(micro_batches) if point is None else point.values,
        program.batches(micro_batches),
        steps - first,
        first_step=first,
        timeout_s=TIMEOUT_S,
        workdir=work,
        checkpoint=SaveRequest(folder=str(saves), every=EVERY, keep=3),
        max_restarts=2 if "restarts" in way else 0,
    )
    return End(losses=outcome.losses, states=outcome.states, first_step=outcome.first_step)


def try_once(subject: Subject, way: str, number: int, chance: random.Random, span_s: float, folder: Path) -> Row:
    """Start a run, send one signal to one of its processes, and look."""
    (folder / "work").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launchers = [_launched(subject, folder, way, host, port) for host in range(2 if way in _SEVERAL else 1)]
    begin_s = time.monotonic()
    time.sleep(chance.uniform(0.05, span_s))
    kind = chance.choice(SIGNALS)
    victims = sorted(_processes(folder))
    at_s = time.monotonic() - begin_s
    if not victims:
        return _row(subject, way, number, kind.name, "nobody was left", at_s, launchers, 0.0, 0, folder)
    victim = chance.choice(victims)
    role = "launcher" if victim in launchers else _role(victim)
    try:
        os.kill(victim, kind)
    except ProcessLookupError:
        role += ", which had just ended"
    sent_s = time.monotonic()
    # A launcher that was stopped stays, and whoever waits for it need not; a run that notices nothing goes on to its end.
    stays = {victim} if kind is signal.SIGSTOP and role == "launcher" else set()
    ignored = kind is signal.SIGINT and role == "fork server"
    until_s = sent_s + (_MOST_S if ignored or way in _AGAIN else LIMIT_S + span_s)
    while (left := _processes(folder) - stays) and time.monotonic() < until_s:
        time.sleep(0.02)
    ended_s = time.monotonic() - sent_s
    for pid in left:
        _end(pid)
    for pid in stays:
        os.kill(pid, signal.SIGCONT)
    _wait(lambda: not _processes(folder), _MOST_S if stays and way in _AGAIN else LIMIT_S)  # where it may, it starts again
    late = _processes(folder)
    for pid in late:
        _end(pid)
    return _row(subject, way, number, kind.name, role, at_s, launchers, ended_s, len(left) + len(late), folder)


def _launched(subject: Subject, folder: Path, way: str, host: int, port: int) -> int:
    """A launcher: a copy of this process, so that it need not import torch anew."""
    pid = os.fork()
    if pid:
        return pid
    atexit._clear()  # what this process would do at its end is not the launcher's
    code = 0
    try:
        os.chdir(folder)
        warnings.simplefilter("ignore")
        log = os.open(folder / f"host{host}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end = perform(subject, folder, way, port)
        if end is not None:
            content = {"losses": list(end.losses), "states": dict(end.states), "first_step": end.first_step, "hosts": end.hosts}
            torch.save(content, folder / "outcome.tmp")
            os.replace(folder / "outcome.tmp", folder / "outcome.pt")
    except RegistaError as error:
        code = 2
        print(f"{type(error).__name__}: {error}", flush=True)
    except KeyboardInterrupt:
        code = 130
        print("interrupted", flush=True)
    except BaseException as error:
        code = 1
        print(f"TRACEBACK {type(error).__name__}: {error}", flush=True)
    atexit._run_exitfuncs()  # as a launcher that is no copy
    sys.stdout.flush()
    os._exit(code)


def _row(
    subject: Subject,
    way: str,
    number: int,
    kind: str,
    role: str,
    at_s: float,
    launchers: Sequence[int],
    ended_s: float,
    left: int,
    folder: Path,
) -> Row:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in launchers]
    ends = {0: "finished", 2: "refused", 130: "interrupted", 1: "traceback"}
    says = " | ".join(path.read_text().strip().replace("\n", " ")[:160] for path in sorted(folder.glob("host*.log")))
    return Row(
        number=number,
        way=way,
        plan=subject.name,
        signal=kind,
        victim=role,
        at_s=round(at_s, 2),
        end=", ".join(ends.get(code, f"died of {signal.Signals(-code).name}" if code < 0 else str(code)) for code in codes),
        ended_s=round(ended_s, 2),
        left=left,
        folders=len(list((folder / "work").iterdir())),
        equal=_equal(subject, way, folder),
        says=says,
    )


def _equal(subject: Subject, way: str, folder: Path) -> str:
    """Whether the run ended with the last bit of an undisturbed one; where it broke, whether a run from its newest checkpoint does.

    One that went on with fewer hosts is compared with an undisturbed run that changes its Plan at the same step.
    """
    for step in sorted((folder / "saves").glob("step-*")):
        verify(step)
    if (folder / "outcome.pt").exists():
        end = End(**torch.load(folder / "outcome.pt", weights_only=True))
        if way in _SEVERAL and end.hosts == 1:
            return "yes" if _same(end, subject.after[end.first_step]) else "NO"
    else:
        if (folder / "saves" / f"step-{STEPS:08d}").exists():
            return "yes, it was saved whole"
        finished = perform(subject, folder, "one host")
        assert finished is not None
        end = finished
    assert subject.undisturbed is not None
    return "yes" if _same(end, subject.undisturbed) else "NO"


def _same(end: End, wanted: End) -> bool:
    losses = wanted.losses[len(wanted.losses) - len(end.losses) :]
    return list(end.losses) == list(losses) and all(torch.equal(end.states[name], value) for name, value in wanted.states.items())


def _processes(folder: Path) -> set[int]:
    """Processes that work in this folder and live (a dead one whose parent has not asked yet does not)."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder) and (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def _role(pid: int) -> str:
    """Workers are forked by the fork server and keep its command line; their output goes to a log."""
    try:
        return "worker" if "/logs/rank" in os.readlink(f"/proc/{pid}/fd/1") else "fork server"
    except OSError:
        return "a process that had just ended"


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself meanwhile
        os.kill(pid, signal.SIGKILL)


def _wait(done: Callable[[], bool], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not done() and time.monotonic() < until_s:
        time.sleep(0.02)
