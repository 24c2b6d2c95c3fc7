"""The end of a run against the size of its state: ``python -m experiments.run_end``.

Two ranks train one large parameter; 10 MB, 100 MB and 1 GB of state, each in processes of its own, all ways in turns, three times each.
``--before CHECKOUT`` also runs a checkout in which the state went through one temporary file.   Rows (kind: run): results/run_end.csv.

    temporary file   every rank's whole part by torch.save, read and put together by the launcher (checkouts before the shards)
    files            each element once, as files of a checkpoint that the launcher maps (registers that come and go, devices, several hosts)
    memory           the state lies in memory of the launcher's from the start; what regista.run does on one host unless it is told otherwise
    none             keep_states=False: what the command line does
    checkpoint       a run that saves; its last save is on the disk before the run ends, so its end follows the disk
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

__all__ = ["RESULTS", "main"]

RESULTS = Path(__file__).parents[1] / "results" / "run_end.csv"
SIZES_MB = (10, 100, 1000)
CHILD = Path(__file__).with_name("child.py")
SELF = Path(__file__).parents[2]


def measured(leaves: str, megabytes: int, source: Path) -> dict[str, str | float]:
    """The row of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(CHILD), leaves, str(megabytes), folder]
        environment = {**os.environ, "PYTHONPATH": str(source)}  # and its folder, where workers look first
        done = subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, str | float] = json.loads(done.stdout.splitlines()[-1])
    return row


def _write(rows: Sequence[dict[str, str | float]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.run_end")
    parser.add_argument("--before", type=Path, help="a checkout in which the state left through a temporary file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES_MB)), help="megabytes of state")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    ways = {"files": SELF, "memory": SELF, "none": SELF, "checkpoint": SELF} | ({"temporary file": args.before} if args.before else {})
    rows: list[dict[str, str | float]] = []
    for number in range(args.rounds):
        for size in args.sizes.split(","):
            for leaves, source in ways.items():
                rows.append(measured(leaves, int(size), source) | {"round": number})
                _write(rows, args.out)
    for leaves in ways:
        for size in sorted({float(row["state_MB"]) for row in rows}):
            of_way = [row for row in rows if row["leaves"] == leaves and row["state_MB"] == size]
            end_s = [float(row["end_s"]) for row in of_way]
            print(
                f"{leaves:15} {size:7.0f} MB: end {median(end_s):.3f} s ({min(end_s):.3f} .. {max(end_s):.3f}), launcher grows by "
                f"{max(float(row['launcher_grown_MB']) for row in of_way):.1f} MB"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
