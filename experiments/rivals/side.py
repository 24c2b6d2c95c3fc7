"""One side of a pair: ``python -m experiments.rivals.side ours|theirs FOLDER``, with FOLDER/job.json.

Starts its workers (ours: regista.run, theirs: torchrun, both with the environment of backend.launch.workers), prints the number of every step that
has ended, and leaves FOLDER/result.json: times_s (one per step) and losses (mean over the global batch).

    side --> fork server | torchrun's agent --> workers           the workers are two levels below this process on either side
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import regista
from backend.launch.workers import ENVIRONMENT, ROOT
from backend.monitor.progress import Progress
from backend.worker.process import die_with_parent
from experiments.rivals.job import Job, Way, from_json, plan_of
from planner.ir.errors import WorkerFailed
from regista.api import program_of

__all__ = ["main", "ours", "theirs"]

PATIENCE_S = 400.0
"""The other side's turn counts as silence, and so does its compiling."""
TICK_S = 0.02
"""How often progress is looked at, as backend.launch.processes does."""

OnProgress = Callable[[int, float], None]


def ours(job: Job, on_progress: OnProgress | None = None) -> dict[str, list[float]]:
    """Perform the Plan on real processes."""
    plan, program = plan_of(job), program_of(job.model)
    outcome = regista.run(plan, program, steps=job.steps, timeout_s=PATIENCE_S, on_progress=on_progress, kernels=job.kernels)
    return {"times_s": list(outcome.trace.step_times_s(plan)), "losses": list(outcome.losses)}


def theirs(job: Job, folder: Path, on_progress: OnProgress | None = None) -> dict[str, list[float]]:
    """Train by torch's own means on as many processes.

    Args:
        folder: holds job.json.

    Raises:
        WorkerFailed: torchrun ended with an error; the message ends with its last words.
    """
    environment = {**os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)]
    progress = Progress(folder, on_progress)
    agent = subprocess.Popen(
        [*torchrun, "-m", "experiments.rivals.worker", str(folder)],
        env=environment,
        stderr=(folder / "torchrun").open("w"),
        preexec_fn=die_with_parent,  # or an interrupted measurement would leave torchrun behind, and stopped workers below it
    )
    while agent.poll() is None:
        time.sleep(TICK_S)
        progress.forward()
    progress.forward()
    if agent.returncode:
        raise WorkerFailed(f"the rival ended with code {agent.returncode}: {(folder / 'torchrun').read_text()[-2000:]}")
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(job.ranks)]
    ends_s = [max(ends) for ends in zip(*(rank["ends_s"] for rank in ranks), strict=True)]
    known = [rank["losses"] for rank in ranks if rank["losses"][0] is not None]
    losses = [sum(parts) / len(parts) for parts in zip(*known, strict=True)]
    first_s = ends_s[1] - ends_s[0] if len(ends_s) > 1 else 0.0  # the first step's start is not on record, and it does not count
    return {"times_s": [first_s, *(after - before for before, after in pairwise(ends_s))], "losses": losses}


def main(name: str, folder: Path) -> None:
    die_with_parent()
    job = from_json((folder / "job.json").read_text())
    on_progress: OnProgress = lambda step, loss: print(step, flush=True)  # noqa: E731
    if name == "theirs" and job.way is Way.OP_BY_OP:
        result = ours(replace(job, kernels="eager"), on_progress)
    else:
        result = ours(job, on_progress) if name == "ours" else theirs(job, folder, on_progress)
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
