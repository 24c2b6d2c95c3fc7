"""Random programs, planned at random, performed and compared with plain PyTorch in float64: is any of them wrong?

    python -m experiments.random_programs                             100 of each kind, by threads
    python -m experiments.random_programs --count 20 --first 500 --performer gloo

Rows are added to results/random_programs.csv (--csv FILE); a seed that it has is left out.  Exit code 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from experiments.random_programs.compared import PROGRAMS, Case, Status, compared

__all__ = ["main"]

CSV = Path(__file__).parents[1] / "results/random_programs.csv"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--program", nargs="*", default=tuple(PROGRAMS), choices=tuple(PROGRAMS))
    parser.add_argument("--performer", default="threads", choices=("threads", "gloo"))
    parser.add_argument("--csv", type=Path, default=CSV)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # more ranks than cores: only results count here
    logging.disable(logging.WARNING)
    table = pd.read_csv(args.csv) if args.csv.exists() else pd.DataFrame(columns=[field.name for field in fields(Case)])
    known = {(row.program, row.seed, row.performer) for row in table.itertuples()}
    for program in args.program:
        for seed in range(args.first, args.first + args.count):
            if (program, seed, args.performer) in known:
                continue
            case = compared(program, seed, args.performer)
            table = pd.concat([table, pd.DataFrame([asdict(case)])], ignore_index=True)
            table.to_csv(args.csv, index=False, float_format="%.3g")
            if case.status is not Status.EQUAL:
                print(f"{program} {seed}: {case.status} {case.error:.2g} {case.ways} {case.names} {case.says}", flush=True)
    for (program, performer), rows in table.groupby(["program", "performer"]):
        counts = Counter(rows.status)
        print(f"{program} by {performer}: {', '.join(f'{status} {count}' for status, count in counts.items())}")
    return int((table.status == Status.WRONG).any())


if __name__ == "__main__":
    sys.exit(main())
