"""A set of measurements with what was predicted for it, and the row that says how far off that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from regista.trust import LEVEL, Scored, left_out_widths

__all__ = ["COLUMNS", "ScoredSet", "row_of", "summarised_row", "unscored_row"]

COLUMNS = (
    *("set", "quantity", "device", "predicted", "given", "left_out", "published", "points"),
    *("mean_error", "median_error", "p90_error", "worst_error", "bias", "level", "known", "inside", "half_width", "missing", "command"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSet:
    """points: columns device, group (what an interval of the point has not seen) and error, predicted over given minus 1; where the prediction
    carries an interval of its own also inside (whether it held) and half_width (a share); devices and parameters where neighbours are told apart.
    beside: the same columns of other sets that the same constants were fitted to; they speak where this set's points are few.

    predicted, given: kinds of number.   left_out: what the constants had not seen.   published: measurements in the source; 0: as many as
    points.   missing: which of them have no prediction, and why.   split: a row per device, too.
    """

    name: str
    quantity: str
    points: pd.DataFrame
    predicted: str
    given: str
    left_out: str
    command: str
    published: int = 0
    missing: str = ""
    split: bool = False
    beside: pd.DataFrame | None = None

    def parts(self) -> list[tuple[str, pd.DataFrame]]:
        """(device, its points); where there are several, 'all' first."""
        own = [(str(device), part) for device, part in self.points.groupby("device", sort=True)]
        if len(own) == 1:
            return own
        return [("all", self.points), *(own if self.split else [])]


def row_of(scored: ScoredSet, device: str, part: pd.DataFrame) -> dict[str, object]:
    """One row of trust.csv.  Where points have no interval of their own, the interval is the one that the other groups' errors give."""
    size = part["error"].abs()
    if "inside" in part:
        known, inside, width = len(part), part["inside"].astype(float).mean(), part["half_width"].median()
    else:
        known, inside, width = _coverage(scored, part)
    whole = device == "all" or not scored.split
    return {
        "set": scored.name,
        "quantity": scored.quantity,
        "device": device,
        "predicted": scored.predicted,
        "given": scored.given,
        "left_out": scored.left_out,
        "published": (scored.published or len(part)) if whole else "",
        "points": len(part),
        "mean_error": size.mean(),
        "median_error": size.median(),
        "p90_error": size.quantile(0.9),
        "worst_error": size.max(),
        "bias": part["error"].median(),
        "level": LEVEL,
        "known": known,
        "inside": inside,
        "half_width": width,
        "missing": scored.missing if whole else "",
        "command": scored.command,
    }


def summarised_row(
    *,
    name: str,
    quantity: str,
    predicted: str,
    given: str,
    left_out: str,
    points: int,
    mean: float,
    bias: float,
    missing: str,
    command: str,
) -> dict[str, object]:
    """A set of which only mean errors are committed."""
    return dict.fromkeys(COLUMNS, "") | {
        "set": name,
        "quantity": quantity,
        "device": "all",
        "predicted": predicted,
        "given": given,
        "left_out": left_out,
        "published": points,
        "points": points,
        "mean_error": mean,
        "bias": bias,
        "missing": missing,
        "command": command,
    }


def unscored_row(name: str, why: str) -> dict[str, object]:
    """A set that nothing is predicted for."""
    return dict.fromkeys(COLUMNS, "") | {"set": name, "points": 0, "missing": why}


def _coverage(scored: ScoredSet, part: pd.DataFrame) -> tuple[int, float, float]:
    """(points with an interval, the share of them that it holds, the median half width as a share) of points without an interval of their own."""
    held: list[bool] = []
    widths: list[float] = []
    for device, own in part.groupby("device", sort=False):
        points, others = _points(own), _points(scored.points[scored.points["device"] != device])
        others += [] if scored.beside is None else _points(scored.beside)
        known = [(p, w) for p, w in zip(points, left_out_widths(points, others), strict=True) if np.isfinite(w)]
        held += [abs(p.error) <= width for p, width in known]
        widths += [width for _, width in known]
    return len(held), float(np.mean(held)) if held else np.nan, float(np.expm1(np.median(widths))) if held else np.nan


def _points(rows: pd.DataFrame) -> list[Scored]:
    errors = np.log1p(rows["error"].to_numpy(dtype=np.float64)).tolist()
    if "devices" not in rows:
        return [Scored(error, str(group)) for error, group in zip(errors, rows["group"], strict=True)]
    places = zip(np.log(rows["devices"]) / 4, np.log(rows["parameters"]) / 2, strict=True)
    return [Scored(error, str(group), place) for error, group, place in zip(errors, rows["group"], places, strict=True)]
