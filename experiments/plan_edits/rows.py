"""One row per edit in a CSV, so that an interrupted measurement goes on; the oracle's word stays, a validator's may be asked anew."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path

from experiments.plan_edits.kinds import EditKind
from experiments.plan_edits.oracle import Performed

__all__ = ["ACCEPTED", "Fate", "Row", "read_rows", "table", "write_rows"]

ACCEPTED = "accepted"


class Fate(Enum):
    """What becomes of an edited Plan, in the order in which it meets them.   REFUSED_LATER: by whoever performs it."""

    VERIFY = "refused by verify"
    VALIDATE = "refused by validate"
    REFUSED_LATER = "refused when run"
    EQUAL = "accepted, equal"
    DIFFERENT = "accepted, different"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """base, number: which edit.   plan_id: of the Plan edited.   verify, validate: 'accepted', what they said, or empty where nobody asked.
    performed: a word of Performed, empty where verify refused.   error, what: see Verdict.   reason: why equal numbers had to be.
    """

    base: str
    number: int
    plan_id: str
    edited_id: str
    kind: str
    words: str
    verify: str
    validate: str
    performed: str
    error: float
    what: str
    reason: str

    @property
    def fate(self) -> Fate:
        if self.verify != ACCEPTED:
            return Fate.CRASHED if self.verify.startswith("crashed") else Fate.VERIFY
        if self.validate not in (ACCEPTED, ""):
            return Fate.CRASHED if self.validate.startswith("crashed") else Fate.VALIDATE
        return {
            Performed.EQUAL.value: Fate.EQUAL,
            Performed.DIFFERENT.value: Fate.DIFFERENT,
            Performed.REFUSED.value: Fate.REFUSED_LATER,
            Performed.CRASHED.value: Fate.CRASHED,
        }[self.performed]


COLUMNS = tuple(field.name for field in fields(Row))


def read_rows(path: Path) -> dict[tuple[str, int], Row]:
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [Row(**{**row, "number": int(row["number"]), "error": float(row["error"])}) for row in csv.DictReader(file)]
    return {(row.base, row.number): row for row in rows}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    beside.replace(path)


def table(rows: Iterable[Row]) -> str:
    """Kinds by fate; then how often which reason holds for equal numbers; then each accepted edit that computes something else."""
    rows = list(rows)
    counts: Mapping[str, Counter[Fate]] = {kind.value: Counter() for kind in EditKind}
    total: Counter[Fate] = Counter()
    for row in rows:
        counts[row.kind][row.fate] += 1
        total[row.fate] += 1
    width = max(len(kind.value) for kind in EditKind)
    heads = " ".join(f"{fate.value:>20}" for fate in Fate)
    lines = [f"{'':{width}} {heads}"]
    for kind, fates in counts.items():
        if fates:
            lines.append(f"{kind:{width}} " + " ".join(f"{fates[fate] or '':>20}" for fate in Fate))
    lines.append(
        f"{f'all of {len(rows)} edits of {len({row.base for row in rows})} Plans':{width}} " + " ".join(f"{total[f]:>20}" for f in Fate)
    )
    strict = Counter(row.reason for row in rows if row.fate is Fate.VALIDATE and row.performed == Performed.EQUAL.value)
    lines.append(f"refused by validate though the numbers are equal: {sum(strict.values())}")
    lines += [f"  {count:5}  {reason}" for reason, count in strict.most_common()]
    reasons = Counter(row.reason for row in rows if row.fate is Fate.EQUAL)
    lines.append("accepted and equal, since:")
    lines += [f"  {count:5}  {reason}" for reason, count in reasons.most_common()]
    for row in rows:
        if row.fate in (Fate.DIFFERENT, Fate.CRASHED):
            lines.append(found(row))
    return "\n".join(lines)


def found(row: Row) -> str:
    """One line on an edit that should have been refused."""
    said = row.what if row.fate is Fate.DIFFERENT else next((t for t in (row.verify, row.validate) if t.startswith("crashed")), row.what)
    return f"{row.fate.value}: {row.base} #{row.number}: {row.kind}: {row.words} [{said[:160]}, error {row.error:.2g}]"
