"""Cross-validation and the tables that come out of it.

fold     a fifth of the points of each fitted set, by a fixed seed; predicted with constants that were fitted to the other four
held     sets that no fit saw: predicted with the constants of the machine's file

Columns ``paper_s`` are published, ``sim_s`` simulated; the error is sim over paper minus one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.fidelity.constants import CONSTANTS, Machine
from experiments.fidelity.fit import Case, balanced, fitted, folds, predicted, refitted
from experiments.fidelity.points import System

__all__ = ["FOLDS", "SEED", "TARGETS", "cross_validated", "order_kept", "summary", "table"]

FOLDS, SEED, FEW = 5, 2026, 50
TARGETS: Mapping[str, tuple[float, float]] = {
    "vtrain-single": (0.07, np.inf),
    "vtrain-multi": (0.09, np.inf),
    "sc21": (0.08, 0.15),
    "seqpar": (0.08, 0.15),
    "dlperf-oneflow": (0.10, np.inf),
    "dlperf-megatron": (np.inf, np.inf),
}
"""Wanted: mean and worst absolute error."""


def cross_validated(
    cases: Sequence[Case],
    machine: Machine,
    *,
    rounds: int = 6,
    parts: int = FOLDS,
    seed: int = SEED,
    free: Sequence[str] | None = None,
    on_fold: Callable[[int], None] | None = None,
) -> tuple[Machine, pd.DataFrame]:
    """The machine fitted to all cases, and every case predicted by a fit that did not see it.

    Args:
        rounds: of the fit of all.  Those of the folds begin there: of fewer than FEW cases they are simulated anew, of more they are
            solved with its derivatives (fit.refitted).  Held cases are simulated with what comes out.   on_fold: told of every fold that is done.
    """
    few = len(cases) < FEW
    start = machine.with_values({name: c.start for name, c in CONSTANTS.items() if free is None or name in free})
    fit = fitted(cases, start, free, rounds=2 * rounds if few else rounds, slopes=2 * rounds if few else 2)
    weight = balanced(cases)
    fold = np.zeros(len(cases), dtype=int)
    for data in dict.fromkeys(point.data for point, _ in cases):
        mine: dict[str, list[int]] = {}  # both systems' times of a DLPerf case share a fold
        for i, (point, _) in enumerate(cases):
            if point.data == data:
                mine.setdefault(point.name.removesuffix(f", {point.system.value}"), []).append(i)
        units = list(mine.values())
        for number, members in enumerate(folds(len(units), parts, seed)):
            fold[[i for member in members for i in units[member]]] = number
    sim_s = np.zeros(len(cases))
    for number in range(parts):
        rest = [i for i, f in enumerate(fold) if f != number]
        held = [case for case, f in zip(cases, fold, strict=True) if f == number]
        if held:
            used = fitted([cases[i] for i in rest], fit.machine, free, rounds=3, slopes=3).machine if few else refitted(fit, rest, weight)
            sim_s[fold == number] = predicted(held, used)
        if on_fold is not None:
            on_fold(number)
    return fit.machine, table(cases, sim_s, [f"fold {number}" for number in fold])


def table(cases: Sequence[Case], sim_s: Sequence[float] | np.typing.NDArray[np.float64], how: Sequence[str]) -> pd.DataFrame:
    """One row per case.  how: who predicted it."""
    rows = []
    for (point, work), seconds, by in zip(cases, sim_s, how, strict=True):
        data = f"{point.data}-{point.system.value}" if point.data == "dlperf" else point.data
        rows.append(
            {
                "data": data,
                "point": point.name,
                "system": point.system.value,
                "machine": point.machine,
                "network": point.nic,
                "layers": point.size.layers,
                "hidden": point.size.hidden,
                "tp": point.tp,
                "dp": point.dp,
                "pp": point.pp,
                "interleave": point.interleave,
                "micro_batch": point.micro_batch,
                "micro_batches": point.micro_batches,
                "actors": len(work.actor_row),
                "predicted_by": by,
                "paper_s": point.paper_s,
                "sim_s": float(seconds),
                "error": float(seconds) / point.paper_s - 1,
            }
        )
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per set: mean, median, 90th percentile and worst absolute error, bias, rank correlation, and what was wanted."""
    lines = []
    for data, part in rows.groupby("data", sort=False):
        error = part["error"].abs()
        mean, worst = TARGETS[str(data)]
        ranks = part[["paper_s", "sim_s"]].rank()
        lines.append(
            {
                "data": data,
                "points": len(part),
                "predicted_by": " and ".join(sorted({how.split()[0] for how in part["predicted_by"]})),
                "mean_error": error.mean(),
                "median_error": error.median(),
                "p90_error": error.quantile(0.9),
                "worst_error": error.max(),
                "bias": part["error"].mean(),
                "rank_correlation": ranks["paper_s"].corr(ranks["sim_s"]) if len(part) > 2 else np.nan,
                "wanted_mean": mean,
                "wanted_worst": worst,
                "met": bool(error.mean() <= mean and error.max() <= worst),
                "constants": len(CONSTANTS),
            }
        )
    return pd.DataFrame(lines)


def order_kept(rows: pd.DataFrame) -> pd.DataFrame:
    """Per DLPerf case the seconds of both systems, and whether the simulated order is the published one (OneFlow first)."""
    case = rows.assign(case=rows["point"].str.rsplit(",", n=1).str[0])
    wide = case.pivot(index="case", columns="system", values=["paper_s", "sim_s"])
    one, other = System.ONEFLOW.value, System.MEGATRON.value
    same_order = (wide["sim_s", one] < wide["sim_s", other]) == (wide["paper_s", one] < wide["paper_s", other])
    return pd.DataFrame(
        {
            "paper_gain": wide["paper_s", other] / wide["paper_s", one],
            "sim_gain": wide["sim_s", other] / wide["sim_s", one],
            "order_kept": same_order,
        }
    ).reset_index()
