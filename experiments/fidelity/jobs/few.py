"""Published H100 jobs predicted out of the box, with constants fitted to 20 of them, and in 8 bits with one constant more.

    python -m experiments.fidelity.jobs.few      writes results/jobs_few.csv (4 minutes)

out of the box      96 rows in bf16 with constants at the round numbers where every fit begins.  Nothing is fitted; who chose the numbers had
                    seen the table.
20 rows             20 rows in bf16, drawn by a seed in turn from every model under a framework; all constants of the device are fitted to them,
                    and the other 76 are scored.  DRAWS times.
one constant, fp8   what 8 bits gain on a product, of the 65 rows in fp8, models in five folds: each is predicted without its fold.  All other
                    constants are those that 20 rows in bf16 gave (the first draw).

The rows that ship are fitted to all rows; what is printed here says what few rows are good for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.fidelity.jobs.__main__ import SHARES, XLA, fresh
from experiments.fidelity.jobs.cases import Case
from experiments.fidelity.jobs.cases import cases as published
from experiments.fidelity.jobs.fit import Floats, Free, fitted, log_errors
from experiments.fidelity.jobs.score import by_fold
from regista.jobs.machines import load_machine

__all__ = ["main", "scored", "spread", "summary"]

RESULT = Path(__file__).parents[2] / "results/jobs_few.csv"
ROWS, DRAWS = 20, 10
LOW: Free = [("", "low_gain")]


def scored(way: str, draw: int, cases: Sequence[Case], errors: Floats) -> list[dict[str, object]]:
    """A row per job.   errors: log(sim / paper), shape [cases]."""
    return [
        {
            "way": way,
            "draw": draw,
            "job": case.entry.name,
            "paper_s": case.paper_s,
            "sim_s": case.paper_s * (1 + error),
            "error": error,
        }
        for case, error in zip(cases, np.expm1(errors).tolist(), strict=True)
    ]


def spread(groups: Sequence[str], count: int, seed: int) -> set[int]:
    """``count`` places, drawn in turn from every group."""
    shuffled = random.Random(seed).sample(range(len(groups)), len(groups))
    turns = {place: sum(groups[before] == groups[place] for before in shuffled[:i]) for i, place in enumerate(shuffled)}
    return set(sorted(shuffled, key=turns.__getitem__)[:count])


def summary(table: pd.DataFrame) -> str:
    """Mean and worst error per way and draw."""
    lines = []
    for way, rows in table.groupby("way", sort=False):
        by_draw = rows.assign(size=rows["error"].abs()).groupby("draw")["size"].agg(["mean", "max"])
        means, worsts = by_draw["mean"], by_draw["max"]
        lines.append(
            f"{way}: mean {means.min():.1%} to {means.max():.1%}, worst {worsts.min():.1%} to {worsts.max():.1%}, {len(by_draw)} draws"
        )
    return "\n".join(lines)


def main() -> None:
    own = [case for case in published("dgxc")[0] if case.job.machine == "h100"]
    wide, low = ([case for case in own if case.job.running.precision.value == name] for name in ("bf16", "fp8"))
    start = fresh(load_machine("h100"))
    rows = scored("out of the box", 0, wide, log_errors(wide, start))
    free: Free = [("", name) for name in SHARES] + [(framework, name) for framework, name in XLA if name != "low_gain"]
    first = start
    for draw in range(DRAWS):
        drawn = spread([case.group for case in wide], ROWS, draw)
        machine = fitted([wide[i] for i in sorted(drawn)], start, free)
        first = machine if draw == 0 else first
        others = [case for i, case in enumerate(wide) if i not in drawn]
        rows += scored(f"{ROWS} rows", draw, others, log_errors(others, machine))
        print(f"draw {draw + 1} of {DRAWS}", flush=True)
    rows += scored("one constant, fp8", 0, low, by_fold(low, first, LOW, rounds=6))
    table = pd.DataFrame(rows)
    table.insert(0, "point", range(1, len(table) + 1))
    table.to_csv(RESULT, index=False, float_format="%.5g")
    print(summary(table))


if __name__ == "__main__":
    main()
