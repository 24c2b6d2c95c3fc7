"""A set of measurements with what was predicted for it, and the row that says how far off that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from regista.trust import LEVEL, left_out_widths

__all__ = ["COLUMNS", "ScoredSet", "row_of", "summarised_row", "unscored_row"]

COLUMNS = (
    *("set", "quantity", "device", "predicted", "given", "left_out", "published", "points"),
    *("mean_error", "median_error", "p90_error", "worst_error", "bias", "level", "inside", "half_width", "missing", "command"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSet:
    """points: columns device, group (what an interval of the point has not seen) and error, predicted over given minus 1; where the prediction
    carries an interval of its own also inside (whether it held) and half_width (a share).

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
        inside, width = part["inside"].astype(float).mean(), part["half_width"].median()
    else:
        widths = np.concatenate([_widths(own) for _, own in part.groupby("device", sort=False)])
        errors = np.concatenate([_logs(own) for _, own in part.groupby("device", sort=False)])
        known = np.isfinite(widths)
        inside = float((np.abs(errors) <= widths)[known].mean()) if known.any() else np.nan
        width = float(np.expm1(np.median(widths[known]))) if known.any() else np.nan
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


def _logs(part: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.log1p(part["error"].to_numpy(dtype=np.float64))


def _widths(part: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(left_out_widths(_logs(part).tolist(), part["group"].tolist()))
