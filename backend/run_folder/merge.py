"""What the ranks of a run left behind -> one Outcome.

All processes of a host share CLOCK_MONOTONIC, so times only need a common zero.  An act of a collective starts, for the trace, when the
last of its ranks has come: waiting for a peer is not work.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.run_folder.files import Options
from backend.run_folder.outcome import Outcome, gather, state_homes, unpacked
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Source, Trace

__all__ = ["Merged", "hardware", "merge"]

_S = 1e-9
Spans = Mapping[str, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """``timings``: per rank what backend.worker.isolated measured."""

    outcome: Outcome
    timings: Mapping[int, Spans]


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
    losses_of: dict[int, float] = next((result["losses"] for result in results.values() if result["losses"]), {})
    losses = tuple(losses_of[step] for step in sorted(losses_of))
    trace = Trace(
        source=Source.RUN,
        performer="gloo",
        plan_id=plan.plan_id,
        steps=options.first_step + options.steps - first_step,
        acts=_acts(plan, {rank: result["acts"].tolist() for rank, result in results.items()}),
        peak_bytes={str(rank): result["peak_bytes"] for rank, result in results.items()},
        register_bytes={str(rank): result["peak_bytes"] for rank, result in results.items()},
        losses=losses,
        about=hardware(plan.num_ranks) | _agreed({rank: result["about"] for rank, result in results.items()}),
    )
    gradients = gather(plan, plan.gradients, _tensors(results, "gradients")) if options.gradients else {}
    states = gather(plan, state_homes(plan), _tensors(results, "states"))
    memory = {rank: result["memory"] for rank, result in results.items()}
    outcome = Outcome(trace=trace, losses=losses, states=states, gradients=gradients, first_step=first_step, memory=memory)
    return Merged(outcome=outcome, timings={rank: result["timings"] for rank, result in results.items()})


def _agreed(about: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """One phrase per key: what all ranks say, else who says what."""
    said: dict[str, dict[str, list[int]]] = {}
    for rank, phrases in about.items():
        for key, phrase in phrases.items():
            said.setdefault(key, {}).setdefault(phrase, []).append(rank)
    return {
        key: next(iter(by)) if len(by) == 1 else "; ".join(f"ranks {', '.join(map(str, ranks))}: {phrase}" for phrase, ranks in by.items())
        for key, by in said.items()
    }


def _tensors(results: Mapping[int, Mapping[str, Mapping[str, Tensor]]], kind: str) -> dict[tuple[str, int, int], Tensor]:
    return unpacked({rank: result[kind] for rank, result in results.items()})


def _acts(plan: Plan, rows: Mapping[int, list[list[int]]]) -> tuple[Act, ...]:
    zero = min((row[2] for acts in rows.values() for row in acts), default=0)
    all_ready_ns: dict[tuple[int, int, tuple[int, ...]], int] = {}
    peers_of: dict[tuple[int, int], tuple[int, ...]] = {}
    for rank, acts in rows.items():
        for place, number, _, start, _ in acts:
            task = plan.tasks[place]
            peers = peers_of.setdefault((place, rank), plan.peers(task, rank))
            if len(peers) > 1:
                all_ready_ns[place, number, peers] = max(all_ready_ns.get((place, number, peers), 0), start)
    merged: list[Act] = []
    for rank, acts in rows.items():
        for place, number, ready, start, end in acts:
            # The clocks of two hosts are not quite one (backend.hosts.clocks): never after the end.
            start = min(end, max(start, all_ready_ns.get((place, number, peers_of[place, rank]), start)))
            merged.append(Act(plan.tasks[place].id, rank, number, (ready - zero) * _S, (start - zero) * _S, (end - zero) * _S))
    return tuple(sorted(merged, key=lambda act: (act.start_s, act.end_s, act.task, act.rank)))


def hardware(ranks: int) -> dict[str, str]:
    """What a measured number needs beside it."""
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
