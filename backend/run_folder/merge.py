"""The files that the workers of a run left behind -> one Outcome."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.checkpoint.leaving import final_state
from backend.checkpoint.manifest import SavedFile
from backend.run_folder.files import Options
from backend.run_folder.outcome import Outcome, assemble, parts_of_ranks
from backend.run_folder.outputs import take_outputs
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan

__all__ = ["Merged", "agreed", "hardware", "merge"]

Spans = Mapping[tuple[str, int], list[tuple[int, int]]]
"""See backend.worker.isolated.Isolated.spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The outcome of all ranks.   timings: per rank what backend.worker.isolated measured.   not_captured: tasks that could not be recorded as
    graphs, over all ranks.   not_compiled: fragments that could not be compiled, and why.
    """

    outcome: Outcome
    timings: Mapping[int, Spans]
    not_captured: int = 0
    not_compiled: Mapping[str, str] = field(default_factory=dict)


def merge(plan: Plan, folder: Path, options: Options) -> Merged:
    """Read all rank*.pt.

    Raises:
        WorkerFailed: a rank left no result although it ended well.
    """
    results: dict[int, dict[str, Any]] = {}
    for rank in range(plan.num_ranks):
        path = folder / f"rank{rank}.pt"
        if not path.exists():
            raise WorkerFailed(f"rank {rank} ended without a result; look for a full disk or a killed process")
        results[rank] = torch.load(path, weights_only=True)
    first_step = min(result["first_step"] for result in results.values())
    performed = range(first_step, options.first_step + options.steps)
    losses_of: dict[int, float] = next((result["losses"] for result in results.values() if result["losses"]), {})
    outcome = assemble(
        plan,
        performer="gloo",
        steps=len(performed),
        held_steps=options.held_steps(len(performed)),
        rows={rank: result["acts"].tolist() for rank, result in results.items()},
        losses=losses_of,
        states=_states(plan, folder, options, results),
        gradients=parts_of_ranks({rank: result["gradients"] for rank, result in results.items()}) if options.gradients else None,
        peak_bytes={rank: result["peak_bytes"] for rank, result in results.items()},
        about=hardware(plan.num_ranks) | agreed({rank: result["about"] for rank, result in results.items()}),
        first_step=first_step,
        memory={rank: result["memory"] for rank, result in results.items()},
        outputs={step: take_outputs(folder, plan, step) for step in performed} if plan.outputs and not options.live else None,
    )
    return Merged(
        outcome=outcome,
        timings={rank: result["timings"] for rank, result in results.items()},
        not_captured=sum(result["not_captured"] for result in results.values()),
        not_compiled={task: why for result in results.values() for task, why in result["not_compiled"].items()},
    )


def agreed(about: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """One phrase per key: that of all ranks, or each phrase with its ranks."""
    ranks_of: dict[str, dict[str, list[int]]] = {}
    for rank, phrases in about.items():
        for key, phrase in phrases.items():
            ranks_of.setdefault(key, {}).setdefault(phrase, []).append(rank)
    return {
        key: next(iter(by)) if len(by) == 1 else "; ".join(f"ranks {', '.join(map(str, ranks))}: {phrase}" for phrase, ranks in by.items())
        for key, by in ranks_of.items()
    }


def _states(plan: Plan, folder: Path, options: Options, results: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The last state, none of it read yet."""
    if not options.keeps_state:
        return {}
    files = [SavedFile(**fields) for result in results.values() for fields in result["state_files"]]
    held = [rank for rank, result in results.items() if result["state_in_memory"]]
    steps = options.first_step + options.steps
    return final_state(plan, folder, files, steps=steps, checkpoint=options.checkpoint, memory=options.state_memory, held=held)


def hardware(ranks: int) -> dict[str, str]:
    """The machine and the versions, which a measured number needs beside it."""
    cores = len(os.sched_getaffinity(0))
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux: the platform's own name has to do
    return {
        "cpu": model,
        "cores": str(cores),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "omp_threads": "1",
        "ranks": str(ranks),
        "oversubscribed": "yes" if ranks > cores else "no",
    }
