"""``regista predict`` against published jobs: constants, cross-validated errors, memory, coverage of intervals, pictures.

    python -m experiments.fidelity.jobs             fit, write regista/jobs/machines/*.toml and residuals.csv, score, draw
    python -m experiments.fidelity.jobs --redraw    draw from results/jobs.csv

Order: H100 on its training rows (shares of the device, XLA's two frameworks); GB200 on its 13, held to H100's shares; then, for each machine,
what is of the host alone (launch, meeting, once per step) on Megatron's CI rows, for all of them and for each environment with 5 points.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from math import isnan
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.fidelity.jobs.cases import Case, cases
from experiments.fidelity.jobs.figures import draw_jobs
from experiments.fidelity.jobs.fit import Floats, Free, fitted
from experiments.fidelity.jobs.score import Held, by_fold, by_group, by_row, summary, table
from experiments.trust import record
from planner.ir.text import save_text
from regista.jobs.intervals import COLUMNS, FILE
from regista.jobs.machines import CONSTANTS, Machine, load_machine, save_constants

HERE = Path(__file__).parents[2]
RESULTS, SUMMARY, FIGURE = HERE / "results/jobs.csv", HERE / "results/jobs_summary.csv", HERE / "figures/jobs.png"
FEW_ROWS = 5
HOST = ("launch_us", "meet_us", "send_us", "step_ms")
SHARES = (
    *("product_share", "attention_share", "attention_backward", "flash_gain", "sweep_share", "low_gain"),
    *("meet_us", "node_share", "nic_share", "beside_share", "growth", "expert_gain", "step_ms"),
)
XLA = tuple((framework, name) for framework in ("paxml", "maxtext") for name in ("jax_gain", "low_gain"))
FEW = (
    "product_share",
    "attention_share",
    "attention_backward",
    "sweep_share",
    "low_gain",
    "node_share",
    "beside_share",
    "expert_gain",
    "step_ms",
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="experiments.fidelity.jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    args = parser.parse_args(argv)
    if not args.redraw:
        _run()
        record()
    rows = pd.read_csv(RESULTS)
    print(summary(rows).to_string(float_format=lambda value: f"{value:.3f}"))
    draw_jobs(rows, FIGURE)


def _run() -> None:
    training, _ = cases("dgxc")
    small, _ = cases("golden")
    tables, residuals, scored = [], [], list[tuple[list[Case], Held]]()
    base = fresh(load_machine("h100"))
    for name in ("h100", "gb200", "a100"):
        own = [case for case in training if case.job.machine == name]
        free: Free = [("", constant) for constant in SHARES] + list(XLA) if name == "h100" else [("", constant) for constant in FEW]
        machine = replace(load_machine(name), values=dict(base.values), environments={})
        if own:
            machine = fitted(own, machine, free)
            held = Held.of(own, by_group(own, machine, free), by_row(own, machine, free), scored)
            scored.append((own, held))
            tables.append(table(own, machine, held))
            residuals += _residuals(own, held, "training")
            error = np.abs(np.expm1(held.group))
            about = f"{len(own)} rows of nvidia_dgxc_step_times; mean {error.mean():.2%}, worst {error.max():.2%}, each group predicted without it"
        else:
            about = "no training rows of this device: shares are those of h100"
        if name == "h100":
            base = machine
        machine, said = _host(name, machine, [case for case in small if case.job.machine == name], tables, residuals)
        save_constants(
            machine,
            {"script": "python -m experiments.fidelity.jobs", "date": date.today().isoformat(), "data": about, "environments": said},
        )
        print(f"{name}: {about}; {said}")
    save_text(FILE, "\n".join([",".join(COLUMNS), *residuals]) + "\n")
    rows = pd.concat(tables, ignore_index=True)
    rows.to_csv(RESULTS, index=False, float_format="%.6g")
    summary(rows).to_csv(SUMMARY, index=False, float_format="%.4g")


def fresh(machine: Machine) -> Machine:
    """Constants where a fit begins."""
    return replace(machine, values={name: c.start for name, c in CONSTANTS.items()}, environments={})


def _host(name: str, machine: Machine, small: list[Case], tables: list[pd.DataFrame], residuals: list[str]) -> tuple[Machine, str]:
    """The host's constants on CI rows: first for all, then for each environment.

    A row of an environment with fewer than FEW_ROWS is predicted, folds left out, by what is fitted to the rows of all environments: beside the
    constants of the others' own, the common ones would be fitted to its one or two remaining rows.
    """
    timed = [case for case in small if not isnan(case.paper_s)]
    held, near = np.zeros(len(timed)), np.zeros(len(timed))
    start = replace(
        machine, environments=dict(machine.environments) | {"ci": {"launch_us": 80.0, "meet_us": 300.0, "send_us": 300.0, "step_ms": 15.0}}
    )
    common: Free = [("ci", constant) for constant in HOST]
    machine = together = fitted(timed, start, common)
    by_all: Floats | None = None
    for environment, count in sorted(Counter(case.job.running.environment for case in timed).items()):
        here = [i for i, case in enumerate(timed) if case.job.running.environment == environment]
        part = [timed[i] for i in here]
        free: Free = [(environment, constant) for constant in HOST] if count >= FEW_ROWS else []
        if free:
            held[here] = by_fold(part, machine, free, rounds=4)
            machine = fitted(part, machine, free, rounds=6)
            near[here] = by_row(part, machine, free)
        else:
            by_all = by_fold(timed, together, common, rounds=3) if by_all is None else by_all
            held[here] = near[here] = by_all[here]
    both = Held.of(timed, held, near)
    tables.append(table(timed, machine, both))
    residuals += _residuals(timed, both, "ci")
    error = np.abs(np.expm1(held))
    return machine, f"{len(timed)} rows of megatron_ci_golden_values; median {np.median(error):.2%}, cases in 5 folds"


def _residuals(cases: Sequence[Case], held: Held, environment: str) -> list[str]:
    lines = []
    for case, error, near in zip(cases, held.group, held.row, strict=True):
        job = case.job
        low, moe, jax = int(job.running.precision.is_low), int(job.model.experts > 0), int(job.running.jax)
        group = case.group.replace(",", " ")
        lines.append(f"{job.machine},{environment},{group},{job.devices},{job.model.parameters},{low},{moe},{jax},{error:.5f},{near:.5f}")
    return lines


if __name__ == "__main__":
    main()
