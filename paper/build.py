"""Builds the paper: paper/regista.typ and the experiments' committed CSV files -> a PDF.

    python -m paper.build                          writes out/paper/regista.pdf (make paper)
    python -m paper.build --png                    and its pages as pictures beside it, to look at
    python -m paper.build --out FILE.pdf

Typst reads the CSV files itself.  This step checks the names first, so that a missing figure or column is told in one message, and hands over what
takes quantiles and ranks: every prediction in experiments/results beside a measured or published number (regista.report.rows), our own runs by model,
and the spread of measured periods.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.ir.errors import InvalidFile, RegistaError, Unsupported
from planner.ir.plan import TaskKind
from regista.analysis.statistics import quantile
from regista.report.measured import Group, by_group, is_measured_sweep, measured_points, workload
from regista.report.rows import PredictedQuantity, number, predicted_quantities, read_rows
from regista.sweep import check, load_manifest

__all__ = ["Named", "build", "missing_names", "named", "own_runs", "run_spreads", "summary", "verdicts"]

ROOT = Path(__file__).parents[1]
MAIN_FILE = str(ROOT / "paper" / "regista.typ")
OWN = "own_gpt"
"""The manifest of our own measurements."""
KIND_TIMES = frozenset(f"{kind.value}_s" for kind in TaskKind)

_STRING = r'"([^"\n]*)"'
_ROWS = re.compile(r"(maybe-|(?<![-\w]))rows\(\s*((?:" + _STRING + r"\s*,?\s*)+)\)")
_PICTURE = re.compile(r"(?<![-\w])(?:picture|image)\(\s*" + _STRING + r"\s*,")
_MADE = re.compile(r"\bmade\(\s*" + _STRING + r"\s*,\s*" + _STRING)


@dataclass(frozen=True, slots=True)
class Named:
    """What a text names: pictures under experiments/figures, CSV files under experiments/results and columns of theirs.

    may_lack: files of ``columns`` that need not be there (maybe-rows); a column of such a file that is there must be.
    """

    pictures: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    may_lack: tuple[str, ...] = ()


def named(text: str) -> Named:
    """All names in the Typst source of the paper.

    >>> named('#let t = rows("a.csv", "x", "y")  #picture("b.png", "make b", [c])')
    Named(pictures=('b.png',), columns={'a.csv': ('x', 'y')}, may_lack=())
    """
    columns: dict[str, tuple[str, ...]] = {}
    may_lack: dict[str, bool] = {}
    for match in _ROWS.finditer(text):
        file, *names = re.findall(_STRING, match[2])
        columns[file] = tuple(dict.fromkeys((*columns.get(file, ()), *names)))
        may_lack[file] = may_lack.get(file, True) and bool(match[1])
    for match in _MADE.finditer(text):
        columns.setdefault(match[2], ())
    pictures = tuple(dict.fromkeys(match[1] for match in _PICTURE.finditer(text)))
    return Named(pictures=pictures, columns=columns, may_lack=tuple(file for file, may in may_lack.items() if may))


def missing_names(text: str, experiments: Path) -> list[str]:
    """What the text names and ``experiments`` (a folder with results/ and figures/) does not have, in words; empty: all is there."""
    names = named(text)
    wrong = [f"figures/{name}" for name in names.pictures if not (experiments / "figures" / name).is_file()]
    for file, columns in names.columns.items():
        path = experiments / "results" / file
        if not path.is_file():
            wrong += [] if file in names.may_lack else [f"results/{file}"]
            continue
        with path.open(newline="", encoding="utf-8") as lines:
            head = next(csv.reader(lines), [])
        wrong += [f"column {column} of results/{file}" for column in columns if column not in head]
    return wrong


def summary(experiments: Path) -> list[dict[str, object]]:
    """One entry per CSV and quantity that is predicted and given: kinds, number of points, errors (predicted / given - 1), rank correlation.

    Busy times of kinds of tasks (forward_s, ...) are one quantity, without a rank; a throughput beside a step time says nothing more and is left out.
    """
    entries: list[dict[str, object]] = []
    for path in sorted((experiments / "results").glob("*.csv")):
        # Sets of one table have a table of their own.
        compared = [quantity for quantity in predicted_quantities(read_rows(path)) if " of " not in quantity.name]
        steps = {quantity.given for quantity in compared if quantity.name == "step_s"}
        by_kind = [quantity for quantity in compared if quantity.name in KIND_TIMES]
        rest = [q for q in compared if q.name not in KIND_TIMES and not (q.name == "throughput_per_s" and q.given in steps)]
        entries += [_entry(path.name, quantity.name, quantity, quantity.errors, quantity.rank_correlation) for quantity in rest]
        for kinds in sorted({(quantity.predicted, quantity.given) for quantity in by_kind}):
            alike = [quantity for quantity in by_kind if (quantity.predicted, quantity.given) == kinds]
            errors = [error for quantity in alike for error in quantity.errors]
            entries.append(_entry(path.name, "time by kind of task", alike[0], errors, None))
    return entries


def _entry(file: str, name: str, quantity: PredictedQuantity, errors: Sequence[float], rank: float | None) -> dict[str, object]:
    sizes = [abs(error) for error in errors]
    return {
        "file": file,
        "quantity": name,
        "predicted": quantity.predicted,
        "given": quantity.given,
        "points": len(sizes),
        "median": quantile(errors, 0.5),
        "mean": sum(sizes) / len(sizes),
        "p90": quantile(sizes, 0.9),
        "worst": max(sizes),
        "rank": rank,
    }


def verdicts(experiments: Path, name: str) -> list[dict[str, object]]:
    """What the manifest of a sweep expects, held against its CSV: relation, held, left, right, says (why it could not be checked); empty: no CSV.

    Raises:
        InvalidFile: the manifest is not there or wrong.
    """
    csv_file = experiments / "results" / f"{name}.csv"
    if not csv_file.is_file():
        return []
    checked = check(load_manifest(experiments / "manifests" / f"{name}.toml"), csv_file)
    said = [*checked.expect, *(verdict for verdict, _ in checked.broken)]
    return [{"relation": v.relation, "held": v.held, "left": v.left, "right": v.right, "says": v.says} for v in said]


def own_runs(experiments: Path) -> list[dict[str, object]]:
    """One entry per model of our own measurements, and one of all: |error| and |noise| of the step time, rank correlation, and the worst choice.

    choice: of the workloads of several points, see regista.report.measured; None where there is none.   Empty: nothing was run.
    """
    csv_file = experiments / "results" / f"{OWN}.csv"
    rows = read_rows(csv_file) if csv_file.is_file() else None
    points = measured_points(rows) if rows is not None and is_measured_sweep(rows) else ()
    if rows is None or not points:
        return []
    groups = [*by_group(points, lambda point: point.model), Group(name="all", points=points)]
    entries: list[dict[str, object]] = []
    for group in groups:
        choices = [part.choice for part in by_group(group.points, lambda point: workload(rows, point)) if len(part.points) > 1]
        entries.append(
            {
                "model": group.name,
                "points": len(group.points),
                "median": quantile(group.sizes, 0.5),
                "p90": quantile(group.sizes, 0.9),
                "worst": max(group.sizes),
                "noise": quantile(group.noises, 0.5) if group.noises else None,
                "rank": group.rank_correlation,
                "choice": max(choices, default=None),
            }
        )
    return entries


def run_spreads(experiments: Path) -> dict[str, tuple[float, float]]:
    """Register bytes -> 10th and 90th percentile of the measured periods in quotas_run.csv, in seconds."""
    times: dict[str, list[float]] = {}
    for row in read_rows(experiments / "results" / "quotas_run.csv").rows:
        period_s = number(row["period_s"])
        if row["kind"] == "run" and period_s is not None:
            times.setdefault(row["register_bytes"], []).append(period_s)
    return {size: (quantile(periods, 0.1), quantile(periods, 0.9)) for size, periods in times.items()}


def build(out: Path, *, png: bool = False) -> list[Path]:
    """Write the PDF, and with ``png`` its pages beside it; returns the files.

    Raises:
        Unsupported: the typst wheel is not installed.   InvalidFile: a figure or column that the paper names is missing, or a text is wrong.
    """
    try:
        import typst
    except ImportError as error:
        raise Unsupported("the paper needs the typst wheel; install it with: pip install -c constraints.txt -e '.[dev]'") from error
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "paper").glob("*.typ")))
    if wrong := missing_names(text, ROOT / "experiments"):
        raise InvalidFile(f"the paper names what experiments/ does not have: {', '.join(wrong)}; run the experiment, or mend the paper")
    present = [
        f"{path.parent.name}/{path.name}" for name in ("results", "figures") for path in sorted((ROOT / "experiments" / name).iterdir())
    ]
    given = {
        "held": json.dumps(summary(ROOT / "experiments")),
        "own": json.dumps(verdicts(ROOT / "experiments", OWN)),
        "own_runs": json.dumps(own_runs(ROOT / "experiments")),
        "spreads": json.dumps(run_spreads(ROOT / "experiments")),
        "present": json.dumps(present),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    pages = out.with_name(out.stem + "-{p}.png")
    try:
        typst.compile(MAIN_FILE, str(out), root=str(ROOT), ignore_system_fonts=True, format="pdf", sys_inputs=given)
        if png:
            typst.compile(MAIN_FILE, str(pages), root=str(ROOT), ignore_system_fonts=True, format="png", ppi=110.0, sys_inputs=given)
    except typst.TypstError as error:
        raise InvalidFile(f"{MAIN_FILE} cannot be set:\n{error.diagnostic}") from error
    return [out, *(sorted(out.parent.glob(f"{out.stem}-*.png")) if png else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the paper from the committed CSV files.")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "paper" / "regista.pdf", metavar="FILE")
    parser.add_argument("--png", action="store_true", help="also the pages as pictures")
    args = parser.parse_args()
    try:
        files = build(args.out, png=args.png)
    except RegistaError as error:
        print(f"paper: {error}", file=sys.stderr)
        return 2
    print(f"wrote {files[0]}" + (f" and {len(files) - 1} pictures beside it" if args.png else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
