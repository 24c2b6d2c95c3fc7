"""Solve the public sharding-choice instances in a folder, one after another, and lay the results beside the best published values.

    python -m experiments.iopddl FOLDER --seconds 300 [--only A,B] [--out experiments/results/iopddl.csv]

Rows of instances that are not solved this time stay in the CSV.  Seconds are wall time of the search, reading excluded.
"""

from __future__ import annotations

import argparse
import csv
import platform
from collections.abc import Sequence
from pathlib import Path

from planner.solve.iopddl import load_iopddl
from planner.solve.limited.memory import solve_within
from planner.solve.problem import Progress

__all__ = ["main"]

COLUMNS = ("instance", "nodes", "edges", "objective", "lower_bound", "gap", "best_known", "seconds")
BEST_KNOWN = {
    "A": 6_548_641_531,
    "B": 532_843,
    "C": 84_102_445_244,
    "D": 313_220_105_872,
    "G": 217_039,
    "K": 2_257_227_094,
    "L": 1_970_993_742,
    "M": 49_928_460_991,
}
"""Least objectives published by the contest and by its winners' later paper (ti2-group/iopddl_experiments, 2025)."""


def solve(path: Path, seconds: float) -> dict[str, object]:
    """One row of the table."""
    name = path.name.split(".")[0]
    problem = load_iopddl(path)

    def show(known: Progress) -> None:
        print(f"  {name} {known.seconds:7.1f} s  objective {known.objective:.0f}  lower bound {known.lower_bound:.0f}", flush=True)

    solution = solve_within(problem, seconds=seconds, watch=show)
    assert problem.feasible(solution.choice)
    assert problem.objective(solution.choice) == solution.objective
    print(f"  {name}: {solution.method}; {solution.proof}")
    return {
        "instance": name,
        "nodes": len(problem.costs),
        "edges": len(problem.edges),
        "objective": f"{solution.objective:.0f}",
        "lower_bound": f"{solution.lower_bound:.0f}",
        "gap": f"{solution.gap:.3g}",
        "best_known": BEST_KNOWN.get(name, ""),
        "seconds": f"{solution.seconds:.1f}",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Solve and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="names of instances, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("experiments/results/iopddl.csv"))
    args = parser.parse_args(argv)
    rows: dict[str, dict[str, object]] = {}
    if args.out.exists():
        with args.out.open(newline="") as file:
            rows = {row["instance"]: dict(row) for row in csv.DictReader(file)}
    wanted = set(args.only.split(",")) - {""}
    for path in sorted(args.folder.glob("*.json*")):
        if wanted and path.name.split(".")[0] not in wanted:
            continue
        row = solve(path, args.seconds)
        rows[str(row["instance"])] = row
        # Written after each: a long run that is cut short leaves what it has.
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[name] for name in sorted(rows))
    print(f"{platform.machine()}, Python {platform.python_version()}; wrote {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
