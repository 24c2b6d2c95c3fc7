"""Which lines hold that a run on a GPU must show, from its rows alone: each with what was measured and what is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd

__all__ = ["Line", "lines"]

MOST_S = 8 * 60.0
LEAST_PLANS = 12
STEP_ERROR, PEAK_ERROR = 0.05, 0.05
LEAST_OF_EAGER, LEAST_OF_COMPILED = 1.1, 0.95
HIDDEN = 1.15
"""A step whose copies hide takes at most so many times its longest act; one whose copies do not takes at least SERIAL of the sum."""
SERIAL = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """holds: None: not measured."""

    line: str
    asked: str
    measured: str
    holds: bool | None


def lines(rows: pd.DataFrame, parts: Sequence[Mapping[str, object]], out: Path) -> list[Line]:
    """All lines.

    Args:
        rows: of all parts.   parts: ``part``, ``state``, ``seconds`` of each.   out: where pictures and traces lie.
    """
    return list(_lines(rows, parts, out))


def _lines(rows: pd.DataFrame, parts: Sequence[Mapping[str, object]], out: Path) -> Iterator[Line]:
    seconds = sum(float(str(part["seconds"])) for part in parts)
    bad = [str(part["part"]) for part in parts if part["state"] != "ok"]
    measured = f"{seconds:.0f} s{', not well: ' + ', '.join(bad) if bad else ''}"
    yield Line(line="every part ends well", asked=f"in {MOST_S:.0f} s", measured=measured, holds=not bad and seconds <= MOST_S)
    for name, starts in (("transparency in fp32", "fp32:"), ("... with dropout", "fp32, dropout:"), ("... in bf16-mixed", "bf16-mixed:")):
        yield _worst(rows, name, lambda setting, starts=starts: setting.startswith(starts))  # type: ignore[misc]
    yield _worst(rows, "two ranks on one device", lambda setting: "2 ranks" in setting)
    yield _worst(rows, "four ranks on one device", lambda setting: "4 ranks" in setting)
    yield _overhead(rows)
    for part in ("gpt2", "resnet50"):
        for rival, least in (("eager", LEAST_OF_EAGER), ("torch.compile", LEAST_OF_COMPILED), ("CUDA graph", 0.0)):
            found = rows[(rows["part"] == part) & (rows["quantity"] == "ratio") & rows["setting"].str.startswith(f"{rival} /")]["run"]
            shown = f"{found.iloc[0]:.2f}" if len(found) else "not measured"
            asked = f">= {least:g}" if least else "is said"
            holds = bool(found.iloc[0] >= least) if len(found) else None
            yield Line(line=f"{part}: its step beside {rival}", asked=asked, measured=shown, holds=holds)
    yield _error(rows, "step predicted by acts alone", "step", STEP_ERROR)
    yield _error(rows, "step predicted by the kernel table", "step by the kernel table", STEP_ERROR)
    yield _error(rows, "peak counted before the run", "peak of ", PEAK_ERROR)
    yield _hidden(rows)
    pictures, traces = len(list(out.glob("*/gantt-*.png"))), len(list(out.glob("*/*.run.json")))
    kept = (out / "kernels" / "kernels.json").exists() and (out / "about.json").exists()
    yield Line(
        line="traces, pictures, kernel table and what it ran on",
        asked="are there",
        measured=f"{traces} traces, {pictures} pictures{', kernel table' if kept else ''}",
        holds=bool(pictures and traces and kept),
    )


def _worst(rows: pd.DataFrame, line: str, of: Callable[[str], bool]) -> Line:
    found = rows[(rows["part"] == "transparency") & rows["setting"].map(of)]["run"] if len(rows) else rows
    if not len(found):
        return Line(line=line, asked="<= 1 of what is allowed", measured="not measured", holds=None)
    return Line(line=line, asked="<= 1 of what is allowed", measured=f"{found.max():.2g} ({len(found)} runs)", holds=bool(found.max() <= 1))


def _overhead(rows: pd.DataFrame) -> Line:
    found = rows[(rows["part"] == "overhead") & (rows["quantity"] == "step / acts")]
    shown = ", ".join(f"{row['setting']} {row['run'] * 1e6:.1f} us" for _, row in found.iterrows())
    return Line(
        line="per-act overhead", asked="is said, with graphs and without", measured=shown or "not measured", holds=len(found) == 2 or None
    )


def _error(rows: pd.DataFrame, line: str, quantity: str, most: float) -> Line:
    """The median of |run / sim - 1|."""
    wanted = rows[(rows["part"] == "predicted") & rows["quantity"].str.startswith(quantity)] if len(rows) else rows
    found = wanted[wanted["quantity"] == quantity] if quantity == "step" else wanted
    errors = [abs(row["run"] / row["sim"] - 1) for _, row in found.iterrows() if pd.notna(row["sim"]) and row["sim"]]
    asked = f"<= {most:.0%} median of {LEAST_PLANS} plans and more"
    if not errors:
        return Line(line=line, asked=asked, measured="not measured", holds=None)
    shown = f"{median(errors):.1%} of {len(errors)} plans, largest {max(errors):.1%}"
    return Line(line=line, asked=asked, measured=shown, holds=median(errors) <= most and len(errors) >= LEAST_PLANS)


def _hidden(rows: pd.DataFrame) -> Line:
    """With one block per register acts follow each other, with two only the longest counts."""
    of = rows[rows["part"] == "actors"] if len(rows) else rows
    steps = {row["setting"]: row["run"] for _, row in of.iterrows() if row["quantity"] == "step"}
    alone = {row["setting"]: row["run"] for _, row in of.iterrows() if row["quantity"] == "act alone"}
    asked = f"quota 2: <= {HIDDEN:g} of the longest act; quota 1: >= {SERIAL:g} of H2D + compute"
    if "RegstNum 2" not in steps or not {"h2d", "compute"} <= set(alone):
        return Line(line="H2D hides behind compute", asked=asked, measured="not measured", holds=None)
    longest, both = max(alone.values()), alone["h2d"] + alone["compute"]
    two, one = steps["RegstNum 2"] / longest, steps["RegstNum 1"] / both
    return Line(line="H2D hides behind compute", asked=asked, measured=f"{two:.2f}; {one:.2f}", holds=two <= HIDDEN and one >= SERIAL)
