"""``regista advise`` on what others run.

python -m experiments.advise round-trip     Megatron's tests and torchtitan's Llamas: job -> settings -> job; prints what cannot be expressed
python -m experiments.advise bad            twenty bad jobs: the first line names the fault, the better one is as much quicker as it claims
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.advise.bad_jobs import BAD, judged, row_of
from experiments.advise.round_trip import megatron_rows, torchtitan_rows
from regista.jobs.advice import Limits

RESULTS = Path(__file__).parents[1] / "results"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="experiments.advise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["round-trip", "bad"])
    (_round_trip if parser.parse_args(argv).what == "round-trip" else _bad)()


def _round_trip() -> None:
    rows = [row | {"row": number} for number, row in enumerate([*torchtitan_rows(), *megatron_rows()], start=1)]
    _save("advise_round_trip.csv", rows)
    told = Counter((str(row["form"]), str(row["result"]), str(row["flags"])) for row in rows)
    for (form, result, flags), count in sorted(told.items()):
        print(f"{count:4}  {form:30} {result:10} {flags}")
    print("what cannot be expressed:")
    for why, count in Counter(str(row["why"]).split(": ", 1)[-1][:110] for row in rows if row["why"]).most_common():
        print(f"{count:4}  {why}")


def _bad() -> None:
    rows = []
    with TemporaryDirectory() as folder:
        for name in BAD:
            advice = judged(name, Path(folder), Limits(seconds=60.0, predictions=16))
            row = row_of(name, advice, Path(folder))
            rows.append(row)
            gain = (
                f"{float(str(row['claimed_gain'])):.0%} less"
                if row["claimed_gain"] != ""
                else "fits"
                if row["better"]
                else "nothing better"
            )
            print(f"{'ok ' if row['named'] else 'BAD'} {name:50} {gain:14} {row['first_line']}")
    _save("advise_bad.csv", rows)


def _save(name: str, rows: Sequence[dict[str, object]]) -> None:
    with (RESULTS / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)


if __name__ == "__main__":
    main()
