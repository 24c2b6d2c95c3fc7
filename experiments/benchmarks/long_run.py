"""Memory of workers over a long run: ``python -m experiments.benchmarks.long_run --acts 1000000``.

An MLP in two stages on two processes, with --trace-steps and, over a tenth of the acts, without.  At twenty points the resident memory
of each process (VmRSS of /proc/PID/status) is read.  Expected: with a selection of steps, growth of at most 5 MB from the first point to the last.
Rows (kind: run): results/long_run.csv.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import regista
from backend.launch.processes import run
from planner.ir.plan import Plan
from planner.ir.traces.held import consecutive
from planner.ir.traces.trace import check_trace
from regista.programs import planned_program

__all__ = ["RESULTS", "SELECTION", "main", "measured"]

RESULTS = Path(__file__).parents[1] / "results" / "long_run.csv"
SELECTION = "first:20,last:20,every:1000"
POINTS = 20
MODEL = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"

Row = dict[str, str | int | float]


def resident_bytes(pid: int) -> int | None:
    """Memory of a process that is resident now; None: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def measured(plan: Plan, acts: int, selection: str) -> list[Row]:
    """Rows of one run of about ``acts`` acts over all ranks."""
    per_step = sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    steps = max(2 * POINTS, acts // per_step)
    program, rows, begin_s = planned_program(plan), list[Row](), time.monotonic()
    with tempfile.TemporaryDirectory() as workdir:

        def sample(step: int, loss: float) -> None:
            if (step + 1) % (steps // POINTS):
                return
            for path in sorted(Path(workdir).glob("*/rank*.a0.pid")):
                if (size := resident_bytes(int(path.read_text()))) is None:
                    continue  # it has performed its last act
                rows.append(
                    {
                        "kind": "run",
                        "trace_steps": selection or "all",
                        "rank": int(path.name.removeprefix("rank").partition(".")[0]),
                        "acts": (step + 1) * per_step,
                        "resident_bytes": size,
                        "seconds": round(time.monotonic() - begin_s, 1),
                    }
                )

        batch = program.batches(plan.micro_batches)(0)
        state = program.initial_state(plan.micro_batches)
        outcome = run(plan, state, lambda _: batch, steps, on_progress=sample, workdir=workdir, allow_nan=True, trace_steps=selection)
    check_trace(plan, outcome.trace)
    check_trace(plan, consecutive(plan, outcome.trace))
    return rows


def growth_bytes(rows: Sequence[Row], selection: str) -> int:
    """The most that a rank's memory has grown from the first point to the last."""
    of_rank: dict[object, list[int]] = {}
    for row in rows:
        if row["trace_steps"] == selection:
            of_rank.setdefault(row["rank"], []).append(int(row["resident_bytes"]))
    return max(sizes[-1] - sizes[0] for sizes in of_rank.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.long_run")
    parser.add_argument("--acts", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    plan = regista.plan(MODEL, "local:2", stages=2, micro_batches=4)
    rows = measured(plan, args.acts, SELECTION) + measured(plan, args.acts // 10, "")
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for selection, acts in ((SELECTION, args.acts), ("all", args.acts // 10)):
        print(f"trace steps {selection}: {growth_bytes(rows, selection) / 1e6:.2f} MB more after {acts:,} acts")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
