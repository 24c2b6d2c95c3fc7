"""What saving costs training: step times without saves, with a save in flight all the time, and the save alone; and the steps after a save.

    python -m experiments.benchmarks.checkpoint [--pairs N] [--steps N] [--csv FILE]
    python -m experiments.benchmarks.checkpoint --after [--every N]     steps by how long ago a save began, to results/steps_after_a_save.csv

One plan (GPT, data parallel on 2 gloo ranks), runs in turns (without, with, without, with, ...), one row per run; all numbers are measured
(``run``).  ``alone_s``: the same files written with nothing beside, in this process.  Without a save in flight a step that waited for it would
take its own time plus ``alone_s``.

With --after: a save every N steps, and for each of the N places of a step its median over the run, beside the median of the last third of the
places, by which the files are written.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from pathlib import Path

import torch

import backend
import regista
from backend.checkpoint import SaveRequest
from backend.checkpoint.folder import steps_of, write_part
from planner.ir.plan import Plan
from planner.ir.units import show_bytes
from regista.api import program_of

__all__ = ["main"]

MODEL = "zoo:gpt?layers=4&width=256&heads=8&vocab=2048&batch=8&seq=128"
WARMUP = 2
AFTER = Path(__file__).parents[1] / "results" / "steps_after_a_save.csv"


def _median_s(plan: Plan, outcome: regista.Outcome) -> tuple[float, float, float]:
    times = sorted(outcome.trace.step_times_s(plan)[WARMUP:])
    return statistics.median(times), times[0], times[int(0.9 * (len(times) - 1))]


def after_a_save(plan: Plan, runs: int, every: int) -> list[dict[str, object]]:
    """Medians of the steps that begin with a save, of those after it, and so on."""
    program, rows = program_of(MODEL), list[dict[str, object]]()
    state = program.initial_state(1)
    for number in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            request = SaveRequest(folder=folder, every=every, keep=1)
            outcome = backend.run(plan, state, program.batch, 8 * every + 1, checkpoint=request, timeout_s=120)
        times = outcome.trace.step_times_s(plan)
        places = [statistics.median(times[every + place :: every]) for place in range(every)]
        rest_s = statistics.median(places[-(every // 3) :])
        for place, step_s in enumerate(places):
            rows.append({"kind": "run", "run": number, "steps_after_save": place, "step_s": step_s, "over_rest": step_s / rest_s - 1})
        worst = max(range(every), key=places.__getitem__)
        print(
            f"run {number}: step with a save {places[0] / rest_s - 1:+.1%}, longest (place {worst}) {places[worst] / rest_s - 1:+.1%}, "
            f"all {statistics.mean(places) / rest_s - 1:+.1%} of {rest_s * 1e3:.1f} ms",
            flush=True,
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--after", action="store_true", help="the steps after a save, one by one")
    parser.add_argument("--every", type=int, default=12, help="with --after: steps between saves")
    args = parser.parse_args()
    program = program_of(MODEL)
    plan = regista.plan(program, "local:2", mesh=(2,), pins=["input.0=S(0)"], seconds=20)
    if args.after:
        rows = after_a_save(plan, args.pairs, args.every)
        _write(AFTER, rows)
        return 0
    state = program.initial_state(1)
    rows = []
    for pair in range(args.pairs):
        for saving in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                request = SaveRequest(folder=folder, every=1, keep=1) if saving else None
                outcome = backend.run(plan, state, program.batch, args.steps, checkpoint=request, timeout_s=120)
                saves = len(steps_of(Path(folder)))
            median_s, least_s, p90_s = _median_s(plan, outcome)
            rows.append({"pair": pair, "saving": saving, "median_s": median_s, "min_s": least_s, "p90_s": p90_s, "steps": args.steps})
            label = "a save per step" if saving else "no save"
            spread = f"min {least_s * 1e3:.1f}, p90 {p90_s * 1e3:.1f}"
            print(f"pair {pair}  {label:16}  step {median_s * 1e3:.1f} ms ({spread})")
            assert saves == (1 if saving else 0)
    half = dict(list(state.items())[::2])
    with tempfile.TemporaryDirectory() as folder:
        alone = []
        for number in range(5):
            begin_s = time.perf_counter()
            size_bytes = write_part(Path(folder) / f"{number}.pt", half).size_bytes
            alone.append(time.perf_counter() - begin_s)
    ratios = [float(str(b["median_s"])) / float(str(a["median_s"])) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    print(
        f"step with saves / without: median {statistics.median(ratios):.2f} of {len(ratios)} pairs ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    print(f"one rank's file alone: {show_bytes(size_bytes)} in {statistics.median(alone) * 1e3:.0f} ms; torch {torch.__version__}")
    if args.csv:
        for row in rows:
            row |= {"source": "run", "alone_s": statistics.median(alone), "size_bytes": size_bytes, "torch": torch.__version__}
        _write(args.csv, rows)
    return 0


def _write(path: str | Path, rows: list[dict[str, object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    raise SystemExit(main())
