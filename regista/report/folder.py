"""A folder of results as pages: one per CSV, one per pair of traces of one Plan, and an index.

FOLDER/claims.toml          a record per claim: the index's cards (optional)
FOLDER/*.csv, results/*.csv a page each, with the pictures that the cards show of it
FOLDER/results/trust.csv    sets of measurements and errors of their predictions: the page "How far to trust this" (optional)
FOLDER/manifests/*.toml     relations for the page of a sweep of the same name that was measured (optional)
FOLDER/*.json               traces; a simulated and a measured one of the same Plan make a page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.files import load_trace
from planner.ir.plan import Plan
from planner.ir.reading import read_json
from planner.ir.traces.held import consecutive
from planner.ir.traces.trace import Source, Trace
from regista.report.claims import Claim, load_claims
from regista.report.measured import is_measured_sweep
from regista.report.pages.comparison_page import save_comparison
from regista.report.pages.index_page import save_index
from regista.report.pages.rows_page import save_rows_page
from regista.report.pages.sweep_page import save_sweep_page
from regista.report.pages.trust_page import TITLE, is_trust_table, save_trust_page
from regista.report.rows import read_rows
from regista.sweep import load_manifest

__all__ = ["Written", "save_folder"]

INDEX = "index.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What save_folder wrote, as file names in the folder given: the index, pages of traces, pages of CSV files; and how many cards."""

    index: str
    comparisons: tuple[str, ...]
    tables: tuple[str, ...]
    claims: int


def save_folder(folder: str | Path, out: str | Path) -> Written:
    """Write all pages of a folder into another one, which is made if it is not there.

    Raises:
        InvalidFile: nothing to show, a file that cannot be read or written, or two files that would make one page.   Mismatch: see save_comparison.
    """
    source, target = Path(folder), Path(out)
    csvs = sorted([*source.glob("*.csv"), *source.glob("results/*.csv")])
    pairs = _trace_pairs(source)
    recorded = source / "claims.toml"
    claims = load_claims(recorded).records if recorded.is_file() else ()
    if not csvs and not pairs and not claims:
        raise InvalidFile(f"{source}: no CSV, no pair of traces and no claims.toml; give a folder of results")
    names = [csv.stem for csv in csvs] + [f"compare-{name}" for name in pairs]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidFile(f"{source}: two files would make the page {doubles[0]}.html; rename one of them")
    tables = {csv: read_rows(csv) for csv in csvs}
    target.mkdir(parents=True, exist_ok=True)
    pages: dict[Path, str] = {}
    others: dict[str, str] = {}
    trust: dict[str, str] = {}
    for csv in tables:
        pages[csv] = f"{csv.stem}.html"
    homes = _homes(claims, csvs)
    for csv, rows in tables.items():
        pictures = [picture for picture, home in homes.items() if home == csv]
        if is_measured_sweep(rows):
            manifest_path = source / "manifests" / f"{csv.stem}.toml"
            manifest = load_manifest(manifest_path) if manifest_path.is_file() else None
            save_sweep_page(rows, target / pages[csv], back=INDEX, manifest=manifest, csv=csv, pictures=pictures)
        elif is_trust_table(rows):
            save_trust_page(rows, target / pages[csv], back=INDEX, pictures=pictures)
            trust[TITLE] = pages[csv]
        else:
            save_rows_page(rows, target / pages[csv], back=INDEX, pictures=pictures)
    for name, (plan, sim, run) in pairs.items():
        others[f"{plan.model}, plan {plan.plan_id}"] = f"compare-{name}.html"
        save_comparison(plan, sim, run, target / f"compare-{name}.html")
    title = "Experiments" if claims else f"Results in {source.name}"
    save_index(claims, pages, others, target / INDEX, title, trust=trust, homes={picture: pages[home] for picture, home in homes.items()})
    return Written(index=INDEX, comparisons=tuple(others.values()), tables=tuple(pages.values()), claims=len(claims))


def _homes(claims: Sequence[Claim], csvs: Sequence[Path]) -> dict[Path, Path]:
    """Picture -> the CSV on whose page it stands whole: the one whose name begins the picture's, the longest first, or else the claim's first."""
    homes: dict[Path, Path] = {}
    by_path = {csv.resolve(): csv for csv in csvs}
    for claim in claims:
        own = [by_path[table.resolve()] for table in claim.tables if table.resolve() in by_path]
        for picture in claim.pictures:
            alike = [csv for csv in csvs if picture.stem == csv.stem or picture.stem.startswith(f"{csv.stem}_")]
            if alike or own:
                homes.setdefault(picture, max(alike, key=lambda csv: len(csv.stem)) if alike else own[0])
    return homes


def _trace_pairs(source: Path) -> dict[str, tuple[Plan, Trace, Trace]]:
    """Plan id -> the Plan, its simulated and its measured trace; of several of a kind the last by name."""
    traces: dict[str, dict[Source, tuple[Plan, Trace]]] = {}
    for path in sorted(source.glob("*.json")):
        if not _is_trace(path):
            continue
        plan, whole = load_trace(str(path))
        trace = consecutive(plan, whole)
        traces.setdefault(plan.plan_id, {})[trace.source] = plan, trace
    both = {plan_id: kinds for plan_id, kinds in traces.items() if len(kinds) == 2}
    return {plan_id: (kinds[Source.SIM][0], kinds[Source.SIM][1], kinds[Source.RUN][1]) for plan_id, kinds in both.items()}


def _is_trace(path: Path) -> bool:
    try:
        data = read_json(path, "give a trace")
    except InvalidFile:
        return False
    return isinstance(data, dict) and data.get("kind") == "trace"
