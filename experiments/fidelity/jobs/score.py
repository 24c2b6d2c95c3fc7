"""Cross-validation of a machine's constants, and the tables of its errors.

training rows   each group (a model under a framework) is predicted by constants that no row of the group was fitted to.  Constants without it
                are worked out from the derivatives at the fit of all (one Gauss-Newton problem); the left-out rows are then simulated with them.
CI rows         the test cases in five folds by a fixed seed; constants of the host are fitted anew to the other four.
memory          no constant is fitted to it, but a device's workspace
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.fidelity.jobs.cases import Case
from experiments.fidelity.jobs.fit import Floats, Free, fitted, log_errors, refitted, slopes
from regista.jobs.intervals import Features, Pairs, features, quantile_of_nearest
from regista.jobs.machines import Machine
from regista.trust import LEVEL

__all__ = ["FOLDS", "SEED", "Held", "by_fold", "by_group", "by_row", "coverage", "summary", "table"]

SEED, FOLDS = 2026, 5


def by_group(cases: Sequence[Case], machine: Machine, free: Free) -> Floats:
    """log(sim / paper) of each case, predicted without its group; shape [cases]."""
    error, slope = log_errors(cases, machine), slopes(cases, machine, free)
    held = np.zeros(len(cases))
    for group in sorted({case.group for case in cases}):
        out = [i for i, case in enumerate(cases) if case.group == group]
        rest = [i for i, case in enumerate(cases) if case.group != group]
        without = refitted([cases[i] for i in rest], error[rest], slope[rest], machine, free)
        held[out] = log_errors([cases[i] for i in out], without)
    return held


def by_row(cases: Sequence[Case], machine: Machine, free: Free) -> Floats:
    """The same without the row's fold, rows in FOLDS folds: what is known of a model that others have run."""
    error, slope = log_errors(cases, machine), slopes(cases, machine, free)
    order = list(range(len(cases)))
    random.Random(SEED).shuffle(order)
    held = np.zeros(len(cases))
    for number in range(FOLDS):
        out = order[number::FOLDS]
        rest = sorted(set(order) - set(out))
        if out and rest:
            without = refitted([cases[i] for i in rest], error[rest], slope[rest], machine, free)
            held[out] = log_errors([cases[i] for i in out], without)
    return held


def by_fold(cases: Sequence[Case], machine: Machine, free: Free, rounds: int) -> Floats:
    """The same, test cases in FOLDS folds."""
    groups = sorted({case.group for case in cases})
    random.Random(SEED).shuffle(groups)
    fold = {group: i % FOLDS for i, group in enumerate(groups)}
    held = np.zeros(len(cases))
    for number in range(FOLDS):
        out = [i for i, case in enumerate(cases) if fold[case.group] == number]
        rest = [case for case in cases if fold[case.group] != number]
        if out:
            held[out] = log_errors([cases[i] for i in out], fitted(rest, machine, free, rounds=rounds))
    return held


def coverage(cases: Sequence[Case], held: Floats, elsewhere: Pairs, *, groups: bool) -> Floats:
    """Half width (a logarithm) of each case's interval, from left-out residuals of other groups, or of all other rows, and of other machines
    (elsewhere); shape [cases]."""
    widths = []
    for number, case in enumerate(cases):
        pairs = [(c, float(e)) for i, (c, e) in enumerate(zip(cases, held, strict=True)) if i != number]
        others = [(features(c.job), e) for c, e in pairs if not groups or c.group != case.group]
        widths.append(quantile_of_nearest(features(case.job), others, elsewhere))
    return np.array(widths)


@dataclass(frozen=True, slots=True)
class Held:
    """log(sim / paper) of each case without its group, and without its row; half widths of both kinds of interval.  Shape [cases] each."""

    group: Floats
    row: Floats
    group_width: Floats
    row_width: Floats

    @classmethod
    def of(cls, cases: Sequence[Case], group: Floats, row: Floats, others: Sequence[tuple[Sequence[Case], Held]] = ()) -> Held:
        """others: of the other machines, scored before."""
        by_group, by_row = (
            [pair for own, held in others for pair in zip(_features(own), getattr(held, by), strict=True)] for by in ("group", "row")
        )
        return cls(group, row, coverage(cases, group, by_group, groups=True), coverage(cases, row, by_row, groups=False))


def _features(cases: Sequence[Case]) -> list[Features]:
    return [features(case.job) for case in cases]


def table(cases: Sequence[Case], machine: Machine, held: Held) -> pd.DataFrame:
    """One row per case: sim and paper side by side.  sim_s: constants of all points; held_s: of those that had not seen the row's group."""
    rows = []
    for case, error, near, width, near_width in zip(cases, held.group, held.row, held.group_width, held.row_width, strict=True):
        job, cells = case.job, case.entry.cells
        sim_s, sim_bytes = case.sim_s(machine), case.sim_bytes(machine)
        held_s = case.paper_s * float(np.exp(error))
        rows.append(
            {
                "data": case.data,
                "row": case.entry.row,
                "job": case.entry.name,
                "group": case.group,
                "source": cells.get("tag") or cells.get("env"),
                "machine": job.machine,
                "precision": job.running.precision.value,
                "devices": job.devices,
                "parameters": job.model.parameters,
                "experts": job.model.experts,
                "jax": int(job.running.jax),
                "tp": job.layout.tp,
                "pp": job.layout.pp,
                "cp": job.layout.cp,
                "vp": job.layout.vp,
                "micro_batches": job.layout.micro_batches,
                "paper_s": case.paper_s,
                "sim_s": sim_s,
                "error": sim_s / case.paper_s - 1,
                "held_s": held_s,
                "held_error": float(np.exp(error)) - 1,
                "held_low_s": held_s * float(np.exp(-width)),
                "held_high_s": held_s * float(np.exp(width)),
                "inside": abs(float(error)) <= width,
                "near_error": float(np.exp(near)) - 1,
                "near_half_width": float(np.expm1(near_width)),
                "near_inside": abs(float(near)) <= near_width,
                "paper_bytes": case.paper_bytes,
                "sim_bytes": sim_bytes,
                "bytes_error": sim_bytes / case.paper_bytes - 1,
            }
        )
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors by set, machine and precision: of all constants, cross-validated, of bytes, and how often the 90 % interval held."""
    lines = []
    for (data, machine, precision), part in rows.groupby(["data", "machine", "precision"], sort=True):
        timed = part[part["paper_s"].notna()]
        lines.append(_line(str(data), str(machine), str(precision), timed, part))
    for data, part in rows.groupby("data", sort=True):
        lines.append(_line(str(data), "all", "all", part[part["paper_s"].notna()], part))
    return pd.DataFrame(lines)


def _line(data: str, machine: str, precision: str, timed: pd.DataFrame, part: pd.DataFrame) -> dict[str, object]:
    fit, held, size = timed["error"].abs(), timed["held_error"].abs(), part["bytes_error"].dropna().abs()
    return {
        "set": f"{data} {machine} {precision}",
        "data": data,
        "machine": machine,
        "precision": precision,
        "points": len(timed),
        "fit_mean_error": fit.mean(),
        "held_mean_error": held.mean(),
        "held_median_error": held.median(),
        "held_p90_error": held.quantile(0.9),
        "held_worst_error": held.max(),
        "level": LEVEL,
        "inside": timed["inside"].mean(),
        "interval_half_width": (timed["held_high_s"] / timed["held_s"] - 1).median(),
        "near_mean_error": timed["near_error"].abs().mean(),
        "near_median_error": timed["near_error"].abs().median(),
        "near_worst_error": timed["near_error"].abs().max(),
        "near_inside": timed["near_inside"].mean(),
        "near_half_width": timed["near_half_width"].median(),
        "memory_points": len(size),
        "memory_median_error": size.median(),
        "memory_p90_error": size.quantile(0.9),
        "memory_worst_error": size.max(),
    }
