"""Kills and stops at random: ``python -m experiments.kills --count 200 --seed 1``; rows to results/kills.csv, the table to the terminal.

Each trial is a run of a small Plan (a pipeline of 2 ranks, or data parallelism of 2) on one host, on one host with restarts, on two hosts (two
launchers on this machine), or on two hosts of which one suffices.  A random process of it (launcher, fork server, worker) meets SIGKILL, SIGSTOP,
SIGTERM, SIGINT or SIGSEGV at a random time, start-up included.
Expected: nobody is left, no folder of a run unless its launcher and fork server both died, and the last bit.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

import regista
from backend.launch.workers import fork_server_client
from experiments.kills.trial import EVERY, LIMIT_S, STEPS, WAYS, End, Row, Subject, perform, try_once
from regista.programs import planned_program

RESULTS = Path(__file__).parents[1] / "results" / "kills.csv"
PLANS = {
    "pipeline": {"stages": 2, "mesh": (1,), "micro_batches": 2},
    "data parallel": {"stages": 1, "mesh": (2,), "micro_batches": 2, "pins": ["input*=S(0)"]},
}
MODEL = "zoo:mlp?width=16&hidden=32&depth=2&batch=8"


def subjects() -> list[Subject]:
    """The Plans, each with the ends of undisturbed runs: of itself, and of one that goes on with the Plan for one host from each save on."""
    found = []
    alone = regista.plan(MODEL, "local:1", micro_batches=2)
    for name, options in PLANS.items():
        plan = regista.plan(MODEL, "local:2", **options)
        subject = Subject(name=name, plan=plan, alone=alone, program=planned_program(plan))
        after = {first: _undisturbed(subject, first) for first in range(0, STEPS, EVERY)}
        found.append(replace(subject, undisturbed=_undisturbed(subject, STEPS), after=after))
    return found


def _undisturbed(subject: Subject, first: int) -> End:
    """The end of a run that nobody disturbs: ``first`` steps of the Plan, the rest of the Plan for one host."""
    with tempfile.TemporaryDirectory(prefix="regista-kills-") as name:
        folder = Path(name)
        (folder / "work").mkdir()
        end = perform(subject, folder, "one host", steps=first) if first else None
        if first < STEPS:
            end = perform(subject, folder, "one host", plan=subject.alone)
        assert end is not None
        return replace(end, states={key: value.clone() for key, value in end.states.items()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--span", type=float, default=6.0, metavar="S", help="the signal comes within so many seconds from the start")
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    plans, chance = subjects(), random.Random(args.seed)
    rows: list[Row] = []
    for number in range(args.count):
        with tempfile.TemporaryDirectory(prefix="regista-kills-") as folder:
            subject, way = plans[number % len(plans)], WAYS[number // len(plans) % len(WAYS)]
            rows.append(try_once(subject, way, number, chance, args.span, Path(folder).resolve()))
        row = rows[-1]
        print(
            f"{number:3}  {row.way:21} {row.plan:13} {row.signal:8} {row.victim:12} {row.at_s:5.2f} s  {row.end:22} {row.ended_s:6.2f} s  "
            f"left {row.left}  {row.equal:4}  {row.says[:60]}",
            flush=True,
        )
        pd.DataFrame([asdict(row) for row in rows]).to_csv(args.out, index=False)
    return show(pd.DataFrame([asdict(row) for row in rows]))


def show(rows: pd.DataFrame) -> int:
    """Print the table; 1 if something is left, late, or not equal."""
    late = (rows.ended_s > LIMIT_S + 6) & ~rows.end.str.contains("finished")
    table = rows.assign(late=late, unequal=rows.equal == "NO", traceback=rows.end.str.contains("traceback"))
    by = table.groupby(["way", "signal"]).agg(
        trials=("number", "size"), left=("left", "sum"), late=("late", "sum"), unequal=("unequal", "sum"),
        traceback=("traceback", "sum"), median_s=("ended_s", "median"), worst_s=("ended_s", "max"), folders=("folders", "sum"),
    )  # fmt: skip
    print(by.to_string())
    return int(bool(table.left.sum() or table.late.sum() or table.unequal.sum() or table.traceback.sum()))


if __name__ == "__main__":
    begin = time.monotonic()
    code = main()
    print(f"{time.monotonic() - begin:.0f} s")
    fork_server_client().close()
    raise SystemExit(code)
