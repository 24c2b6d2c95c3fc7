"""Launchers of elastic runs: each a process of its own, as on a host of its own, with short times to settle."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ports import descendants
from python_path import PYTHON_PATH

import regista
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from regista.clusters import resolve_cluster

__all__ = ["MODEL", "Launchers", "plan_for"]

MODEL = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"

_LAUNCHER = """
import os, sys, time, warnings, torch
import backend.launch.attempts, backend.launch.meeting, backend.launch.nodes
backend.launch.meeting.SETTLE_S = backend.launch.meeting.AGAIN_SETTLE_S = 3.0
backend.launch.attempts.SILENCE_S = backend.launch.nodes.SILENCE_S = 6.0
from backend.launch import Nodes
from planner.ir.errors import RegistaError
from planner.ir.files import load_plan
from regista.hosts import Saves, run_share
plan, saves, out, steps, port, least, most, restarts, every, resume, patience_s, init, gate = sys.argv[1:]
warnings.simplefilter("always")
warnings.showwarning = lambda message, *rest: print(f"warning: {message}", flush=True)
while gate and not os.path.exists(gate):
    time.sleep(0.02)
seen = 0
def report(step, loss):
    global seen
    if step >= seen + 50 or not seen:
        seen = step + 1
        print(f"step {step}", flush=True)
try:
    performed, outcome = run_share(
        load_plan(plan),
        Nodes(count=int(most), least=int(least), rendezvous=f"127.0.0.1:{port}", secret=bytes(32), join_timeout_s=float(patience_s)),
        steps=int(steps), timeout_s=6.0, on_progress=report, max_restarts=int(restarts), init=init,
        saves=Saves(folder=saves, every=int(every), keep=0, resume=resume == "resume"),
    )
except RegistaError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    sys.exit(2)
if outcome is None:
    print("another host has the outcome", flush=True)
else:
    about = outcome.trace.about
    torch.save({"plan": performed.plan_id, "hosts": int(about["hosts"]), "first_step": outcome.first_step, "losses": list(outcome.losses),
                "states": dict(outcome.states)}, out)
    print("host 0", flush=True)
"""


def plan_for(hosts: int, model: str = MODEL) -> Plan:
    """A Plan for so many hosts of one CPU device each, which they share with nobody."""
    one = resolve_cluster("local:1")
    return regista.plan(model, replace(one, num_nodes=hosts, nic=one.node), micro_batches=2)


class Launchers:
    """Starts launchers on this machine and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saves, self.outcome = folder, folder / "saves", folder / "outcome.pt"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        plan: Plan,
        steps: int,
        *,
        least: int = 1,
        most: int = 2,
        restarts: int = 0,
        every: int = 100,
        resume: bool = False,
        patience_s: float = 60.0,
        init: str = "module",
        gate: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """A launcher; with a gate, it does nothing before that file is there but what takes a process long: its imports."""
        path = self.folder / "plan.json"
        save_plan(plan, str(path))
        mode = "resume" if resume else "new"
        words = [path, self.saves, self.outcome, steps, self.port, least, most, restarts, every, mode, patience_s, init, gate or ""]
        with open(self.log(len(self.started)), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, *map(str, words)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TORCH_CPP_LOG_LEVEL": "ERROR", "TMPDIR": str(self.folder)},
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.folder / f"host{number}.log"

    def said(self, number: int) -> str:
        return self.log(number).read_text()

    def await_save(self, step: int, limit_s: float = 90.0) -> None:
        """Until the checkpoint of ``step`` is there."""
        self.wait(lambda: (self.saves / f"step-{step:08d}").exists(), limit_s, f"a checkpoint of step {step}")

    def await_text(self, number: int, text: str, limit_s: float = 90.0) -> None:
        self.wait(lambda: text in self.said(number), limit_s, f"{text!r} of launcher {number}")

    def wait(self, is_so, limit_s: float, what: str) -> None:  # type: ignore[no-untyped-def]
        until_s = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > until_s:
                raise AssertionError(f"no {what} within {limit_s:g} s: {[self.said(n)[-600:] for n in range(len(self.started))]}")
            time.sleep(0.02)

    def host0(self) -> int:
        """The launcher to which losses come: it serves the store."""
        self.wait(lambda: any("step " in self.said(n) for n in range(len(self.started))), 90, "step")
        return next(n for n in range(len(self.started)) if "step " in self.said(n))

    def workers(self, number: int) -> set[int]:
        """Live processes of a launcher that are its run's workers: their output goes to a log of the run."""
        found = set()
        for pid in descendants(self.started[number].pid):
            with suppress(OSError):
                if "/logs/rank" in os.readlink(f"/proc/{pid}/fd/1"):
                    found.add(pid)
        return found

    def ends(self, *numbers: int, limit_s: float = 120.0) -> list[int]:
        return [self.started[number].wait(limit_s) for number in numbers]

    def left(self) -> list[int]:
        """Processes that work for these launchers and outlived them: their output goes into this folder."""
        left = []
        for entry in Path("/proc").glob("[0-9]*/fd/1"):
            with suppress(OSError):
                if os.readlink(entry).startswith(str(self.folder)):
                    left.append(int(entry.parent.parent.name))
        return left

    def end(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
