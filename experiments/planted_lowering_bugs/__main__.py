"""Bugs planted in planner/lower, one at a time: does the validator alone refuse each Plan that does not compute its program?

    python -m experiments.planted_lowering_bugs [--plans NAME;...] [--first N] [--csv FILE]

A bug counts as caught where the validator refuses every Plan that the buggy lowering makes and that computes something else, ends in an error,
or is never live.  ``verify``, which other bugs run into, is asked beside it and does not count.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.planted_lowering_bugs.bugs import BUGS, Bug
from experiments.planted_lowering_bugs.planting import Trial, lowered, tried
from tests.mutation.tree import copy_tree

__all__ = ["PLANS", "main", "outcome"]

PLANS = (
    "data, accumulated",
    "tensor",
    "data x tensor",
    "sequence",
    "pipeline",
    "pipeline x data",
    "ZeRO 1",
    "ZeRO 2",
    "ZeRO 3 in a pipeline",
    "recompute x data",
    "experts",
    "interleaved x data",
    "zero-bubble x tensor",
    "dropout",
    "bf16-mixed",
    "batch norm",
    "clipped, by a schedule, averaged",
    "evaluation",
)


def outcome(trials: Sequence[Trial]) -> str:
    """One word on a bug: caught, MISSED, or that no Plan shows it."""
    wrong = [trial for trial in trials if trial.is_wrong]
    if not wrong:
        return "refused by the lowering itself" if any(t.lowered not in ("same", "other") for t in trials) else "shows in no number"
    return "caught" if all(trial.is_caught for trial in wrong) else "MISSED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", default=";".join(PLANS), metavar="NAMES", help="of experiments.plan_edits, with semicolons")
    parser.add_argument("--csv", type=Path, default=Path("out/planted_lowering_bugs.csv"), metavar="FILE")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with bug number N")
    asked = parser.parse_args()
    begin = time.perf_counter()
    bases = [lowered(name) for name in asked.plans.split(";")]
    print(f"{time.perf_counter() - begin:6.0f} s  {len(bases)} Plans made", flush=True)
    rows: list[dict[str, str]] = []
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(Path.cwd(), tree)
        for number, bug in list(enumerate(BUGS))[asked.first :]:
            trials = tried(tree, bug, bases)
            outcomes[outcome(trials)] += 1
            rows += [{"bug": str(number), "breaks": bug.breaks, **asdict(trial)} for trial in trials]
            print(f"{time.perf_counter() - begin:6.0f} s  {_line(number, bug, trials)}", flush=True)
    asked.csv.parent.mkdir(parents=True, exist_ok=True)
    with asked.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    for word, count in outcomes.most_common():
        print(f"{count:4}  {word}")
    return 1 if "MISSED" in outcomes else 0


def _line(number: int, bug: Bug, trials: Sequence[Trial]) -> str:
    wrong = [trial for trial in trials if trial.is_wrong]
    missed = [trial for trial in wrong if not trial.is_caught]
    by_verify = sum(trial.verify not in ("", "accepted") for trial in wrong)
    stopped = sum(trial.lowered not in ("same", "other") for trial in trials)
    text = (
        f"{outcome(trials)}: bug {number}, {Path(bug.module).name}: {bug.breaks}: {len(wrong)} Plans wrong ({by_verify} refused by verify)"
    )
    text += f", {stopped} not made" if stopped else ""
    return text + "".join(f"\n          missed {t.base}: {t.validate or 'no validator'}; {t.performed}: {t.what[:120]}" for t in missed[:3])


if __name__ == "__main__":
    sys.exit(main())
