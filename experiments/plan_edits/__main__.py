"""Semantic edits of Plans: each is refused by a law, or computes what the Plan computed that it was made from.

    python -m experiments.plan_edits [--plans N] [--edits M] [--csv FILE] [--only TEXT] [--found FILE] [--pairs] [--validate-anew]

Every edit is verified, validated against the program where that accepts it, and performed by the reference performer beside the unedited Plan.
Rows are appended to the CSV, and a measurement that is interrupted goes on.  ``--validate-anew`` asks the validator again about all rows and
performs nothing; ``--found`` appends accepted edits that compute something else to a file, one per line.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

from experiments.plan_edits.bases import BASES, base_plan
from experiments.plan_edits.generator import edits_of, pairs_of
from experiments.plan_edits.kinds import Edit
from experiments.plan_edits.oracle import Oracle
from experiments.plan_edits.rows import Fate, Row, found, read_rows, table, write_rows
from experiments.plan_edits.trial import tried, validated

__all__ = ["main", "measure"]


def measure(name: str, edits: int, rows: dict[tuple[str, int], Row], *, anew: bool = False, pairs: bool = False) -> list[Row]:
    """The rows of the first edits of a base Plan, those that are known already as they are.

    Args:
        anew: rows whose Plan verify accepts are validated again.   pairs: of edits, one upon the other.
    """
    plan = base_plan(name)
    name = f"{name}, pairs" if pairs else name
    known = {number: row for (base, number), row in rows.items() if base == name and row.plan_id == plan.plan_id}
    if not anew and all(number in known for number in range(edits)):
        return [known[number] for number in range(edits)]
    oracle = Oracle(plan)
    made = []
    for number, edit in (pairs_of if pairs else edits_of)(name, plan, edits):
        row = known.get(number)
        if row is None or row.edited_id != edit.plan.plan_id:
            row = _row(name, number, plan.plan_id, edit, oracle)
        elif anew and row.verify == "accepted":
            row = replace(row, validate=validated(edit.plan, oracle.program))
        made.append(row)
    return made


def _row(name: str, number: int, plan_id: str, edit: Edit, oracle: Oracle) -> Row:
    outcome = tried(edit, oracle)
    return Row(base=name, number=number, plan_id=plan_id, edited_id=edit.plan.plan_id, kind=edit.kind.value, words=edit.words, **outcome)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=len(BASES), help=f"the first so many of {len(BASES)} Plans")
    parser.add_argument("--edits", type=int, default=60, help="edits of each")
    parser.add_argument("--csv", type=Path, default=Path("out/plan_edits.csv"), metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="Plans whose name holds this text")
    parser.add_argument("--found", type=Path, metavar="FILE")
    parser.add_argument("--pairs", action="store_true", help="two edits, one upon the other")
    parser.add_argument("--validate-anew", action="store_true")
    asked = parser.parse_args()
    rows = read_rows(asked.csv)
    begin = time.perf_counter()
    for name in [name for name in list(BASES)[: asked.plans] if asked.only in name]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = measure(name, asked.edits, rows, anew=asked.validate_anew, pairs=asked.pairs)
        fresh = [row for row in made if rows.get((row.base, row.number)) != row]
        rows |= {(row.base, row.number): row for row in made}
        write_rows(asked.csv, rows.values())
        bad = [row for row in fresh if row.fate in (Fate.DIFFERENT, Fate.CRASHED)]
        if asked.found is not None:
            with asked.found.open("a", encoding="utf-8") as file:
                file.writelines(found(row) + "\n" for row in bad)
        print(f"{time.perf_counter() - begin:6.0f} s  {name}: {len(made)} edits, {len(bad)} found", flush=True)
    print(table(rows.values()))
    return 1 if any(row.fate in (Fate.DIFFERENT, Fate.CRASHED) for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
