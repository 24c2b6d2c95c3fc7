"""Errors of planner.cost.nccl against the measured rows, by table, kind, group and size band; none of the scored rows was fitted.

    python -m experiments.nccl_fit --score            results/nccl_score.csv (tables), nccl_score_rows.csv.gz (a row per point), the picture

(1) left out 20 %     five folds of whole points: constants and curves from four, errors on the fifth
(2) laws alone        the same folds without curves: what a group pays that nobody measured
(3) left out device   an interconnect from the constants of the others: steps and shares are their means, rates in units of the port's
(4) left out sweeps   several nodes without any row of several nodes: NCCL's own steps, the data sheet's ports, and starting values of fills and
                      shares between nodes that were chosen with one of these sweeps in view, so (4) is a check of the form, not a blind one
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from experiments.nccl_fit.calibrate import INTERCONNECTS, curve_lines, fitted
from experiments.nccl_fit.rows import Row, band, measured_rows, rows_of
from planner.cost.nccl.curves import Curves, read_curves
from planner.cost.nccl.interconnect import parse_interconnect
from planner.cost.nccl.model import CollectiveModel

__all__ = ["FOLDS", "all_errors", "errors_by", "scored", "scored_against", "write_scores"]

HERE = Path(__file__).parent.parent
FOLDS = 5
Data = dict[str, Any]


def scored(rows: Sequence[Row]) -> pd.DataFrame:
    """A row per measured row and way of leaving out: table, site, interconnect, kind, group, bytes, band, left_out, paper_s, theory_s, error."""
    sound = [row for row in rows if row.sound]
    return pd.concat([_folds(sound), _devices(sound), _sweeps(sound)], ignore_index=True)


def errors_by(scores: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """rows, mean, median, p90 of the absolute error and the mean signed one, per value of some columns."""
    groups = scores.assign(size=scores.error.abs()).groupby(list(columns), sort=True)
    return groups.agg(
        rows=("size", "size"),
        mean_error=("size", "mean"),
        median_error=("size", "median"),
        p90_error=("size", lambda s: s.quantile(0.9)),
        mean_signed=("error", "mean"),
    ).reset_index()


def _frame(rows: Sequence[Row], left_out: str, seconds: Callable[[Row], float]) -> pd.DataFrame:
    records = []
    for row in rows:
        theory_s = seconds(row)
        records.append(
            {
                "left_out": left_out,
                "table": row.table,
                "site": row.site,
                "interconnect": row.interconnect,
                "kind": row.kind.value,
                "group": row.group,
                "bytes": row.size_bytes,
                "band": band(row.size_bytes),
                "in_switch": row.in_switch,
                "paper_s": row.paper_s,
                "theory_s": theory_s,
                "error": theory_s / row.paper_s - 1,
            }
        )
    return pd.DataFrame(records)


def _seconds(data: Data, curves: Curves) -> Callable[[Row], float]:
    model = CollectiveModel(interconnect=parse_interconnect(data, "fitted"), curves=curves)
    return lambda row: model.seconds(row.kind, row.size_bytes, row.ranks, row.per_node, in_switch=row.in_switch)


def _folds(rows: Sequence[Row]) -> pd.DataFrame:
    """(1) and (2)."""
    points = sorted({row.point for row in rows}, key=str)
    Random(1).shuffle(points)
    fold_of = {point: number % FOLDS for number, point in enumerate(points)}
    frames = []
    for fold in range(FOLDS):
        kept = [row for row in rows if fold_of[row.point] != fold]
        curves = read_curves("\n".join(curve_lines(kept)))
        for name in INTERCONNECTS:
            held = [row for row in rows if row.interconnect == name and fold_of[row.point] == fold]
            data = fitted(name, kept)
            frames.append(_frame(held, "20 % of the points", _seconds(data, curves.get(name, Curves({})))))
            frames.append(_frame(held, "20 % of the points, laws alone", _seconds(data, Curves({}))))
    return pd.concat(frames, ignore_index=True)


def _devices(rows: Sequence[Row]) -> pd.DataFrame:
    """(3), for the interconnects with a switch."""
    names = [name for name, (_, _, adds, _) in INTERCONNECTS.items() if adds]
    known = {name: fitted(name, rows) for name in names}
    frames = []
    for name in names:
        others = [other for other in names if other != name and other[:2] != name[:2]] or [other for other in names if other != name]
        data = mean_constants([_per_port(known[other], other, 1.0) for other in others])
        held = [row for row in rows if row.interconnect == name and row.ranks == row.per_node]
        frames.append(_frame(held, "whole device", _seconds(_per_port(data, name, -1.0), Curves({}))))
    return pd.concat(frames, ignore_index=True)


def _sweeps(rows: Sequence[Row]) -> pd.DataFrame:
    """(4)."""
    frames = []
    for name in ("h100-nvswitch", "h200-nvswitch"):
        held = [row for row in rows if row.interconnect == name and row.ranks > row.per_node]
        data = fitted(name, [row for row in rows if row.ranks == row.per_node])
        frames.append(_frame(held, "all sweeps over nodes", _seconds(data, Curves({}))))
    return pd.concat(frames, ignore_index=True)


def _per_port(data: Data, name: str, power: float) -> Data:
    """Rates within the node in units of the port's data sheet (power 1), or back (power -1)."""
    unit = INTERCONNECTS[name][0] ** power
    changed = deepcopy(data)
    for table in (changed["port_GBps"], changed["exchange"]["GBps"], changed.get("switch", {})):
        for key in table:
            if key == "GBps" or key.isdigit():
                table[key] /= unit
    return changed


def mean_constants(parts: Sequence[Data]) -> Data:
    """Geometric means, key by key; a key that one has not is taken from those that have it."""
    merged: Data = {}
    for key in {key for part in parts for key in part}:
        values = [part[key] for part in parts if key in part]
        if isinstance(values[0], dict):
            merged[key] = mean_constants(values)
        elif isinstance(values[0], float):
            merged[key] = math.exp(sum(map(math.log, values)) / len(values))
        else:
            merged[key] = values[0]
    return merged


def scored_against(path: Path) -> pd.DataFrame:
    """The errors of the constants and curves that the package ships, on the rows of a table (experiments.nccl_fit.rows)."""
    models: dict[str, CollectiveModel] = {}

    def seconds(row: Row) -> float:
        model = models.setdefault(row.interconnect, CollectiveModel.for_interconnect(row.interconnect))
        return model.seconds(row.kind, row.size_bytes, row.ranks, row.per_node, in_switch=row.in_switch)

    return all_errors(_frame([row for row in rows_of(path) if row.sound], "nothing: as shipped", seconds))


def all_errors(scores: pd.DataFrame) -> pd.DataFrame:
    """By table, and by interconnect, kind, group and size band of each."""
    tables = [errors_by(scores, "left_out", "table")]
    tables += [errors_by(scores, "left_out", "table", column) for column in ("interconnect", "kind", "group", "band")]
    return pd.concat(tables)


def write_scores() -> pd.DataFrame:
    """Score all rows and write the CSVs; returns the scores."""
    scores = scored(measured_rows())
    all_errors(scores).to_csv(HERE / "results/nccl_score.csv", index=False, float_format="%.4g")
    keys = ["left_out", "table", "interconnect", "kind", "group", "bytes", "in_switch"]
    rows = scores.groupby(keys, sort=True)[["paper_s", "theory_s", "error"]].median().reset_index()
    rows.to_csv(HERE / "results/nccl_score_rows.csv.gz", index=False, float_format="%.4g", compression={"method": "gzip", "mtime": 1})
    return scores
