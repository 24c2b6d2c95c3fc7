"""Published tables that the constants of machines are not fitted to, against ``regista predict``: Megatron-Bridge and Sailor.

    python -m experiments.fidelity.jobs.unseen      predict, write results/unseen_jobs.csv and regista/jobs/machines/residuals_unseen.csv (1 minute)

bridge   tokens per second of Megatron-Bridge's recipes on H100 to GB300: predicted by the machines as they are shipped, of which one constant, the
         gain of 4 bits, is of 8 rows on GB200
sailor   Megatron-DeepSpeed on GH200: one constant, how long the members of a collective wait for each other's hosts, is fitted (environment sailor
         of gh200.toml); each row is predicted without its fold, and without its model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.fidelity.jobs.cases import Case, cases
from experiments.fidelity.jobs.fit import Floats, Free, fitted, log_errors
from experiments.fidelity.jobs.score import by_group, by_row, coverage
from experiments.trust.sets import RESULTS
from planner.ir.text import save_text
from regista.jobs.intervals import COLUMNS, UNSEEN_FILE, features
from regista.jobs.machines import Machine, load_machine
from regista.jobs.machines.machine import FOLDER
from regista.jobs.memory import stage_memory
from regista.jobs.pipeline import schedule_of

__all__ = ["main", "predicted_bytes"]

RESULT = RESULTS / "unseen_jobs.csv"
SAILOR: Free = (("sailor", "meet_us"),)


def predicted_bytes(case: Case) -> int:
    """The most that a device of the fullest stage is asked for; what Sailor's number counts is not said."""
    machine, schedule = load_machine(case.job.machine), schedule_of(case.job)
    return max(stage_memory(case.job, machine, schedule, stage).device_bytes[1] for stage in range(case.job.layout.pp))


def _saved(machine: Machine) -> None:
    """The fitted environment, behind what the machine's file holds."""
    path = FOLDER / f"{machine.name}.toml"
    kept = path.read_text(encoding="utf-8").partition("[environments.sailor]")[0].rstrip()
    values = machine.environments["sailor"]
    lines = [f"{name} = {values[name]:.4g}  # fitted to 17 rows of sailor_validation, 2026-11" for _, name in SAILOR]
    save_text(path, "\n".join([kept, "", "[environments.sailor]", *lines]) + "\n")


def _rows(own: Sequence[Case], machine: Machine | None, group: Floats, near: Floats, others: Sequence[tuple[Case, float]]) -> pd.DataFrame:
    """machine: None: as it is shipped.   group, near: log(sim / paper) without the row's group, and without the row."""
    elsewhere = [(features(case.job), error) for case, error in others]
    widths = coverage(own, group, elsewhere, groups=True)
    rows = []
    for case, error, row_error, width in zip(own, group, near, widths, strict=True):
        job, size = case.job, predicted_bytes(case)
        sim_s = case.sim_s(machine or load_machine(job.machine))
        rows.append(
            {
                "point": f"{case.data} {case.entry.row}",
                "data": case.data,
                "row": case.entry.row,
                "job": job.name,
                "group": case.group,
                "machine": job.machine,
                "precision": job.running.precision.value,
                "devices": job.devices,
                "parameters": job.model.parameters,
                "experts": job.model.experts,
                "paper_s": case.paper_s,
                "sim_s": sim_s,
                "group_error": float(np.expm1(error)),
                "held_error": float(np.expm1(row_error)),
                "half_width": float(np.expm1(width)),
                "inside": abs(float(error)) <= width,
                "paper_bytes": case.paper_bytes,
                "sim_bytes": size,
                "bytes_error": size / case.paper_bytes - 1,
            }
        )
    return pd.DataFrame(rows)


def _residuals(rows: pd.DataFrame) -> list[str]:
    low = {"fp8": 1, "nvfp4": 2}
    return [
        f"{r.machine},{'training'},{r.group},{r.devices},{r.parameters},{low.get(r.precision, 0)},{int(r.experts > 0)},0,"
        f"{np.log1p(r.group_error):.5f},{np.log1p(r.held_error):.5f}"
        for r in rows.itertuples()
    ]


def main() -> None:
    bridge, _ = cases("bridge")
    errors = np.array([log_errors([case], load_machine(case.job.machine))[0] for case in bridge])
    tables = []
    for name in sorted({case.job.machine for case in bridge}):
        here = [i for i, case in enumerate(bridge) if case.job.machine == name]
        others = [(case, float(errors[i])) for i, case in enumerate(bridge) if i not in here]
        tables.append(_rows([bridge[i] for i in here], None, errors[here], errors[here], others))
    sailor, _ = cases("sailor")
    machine = load_machine("gh200")
    machine = fitted(sailor, replace(machine, environments=dict(machine.environments) | {"sailor": {"meet_us": 200.0}}), SAILOR)
    _saved(machine)
    tables.append(_rows(sailor, machine, by_group(sailor, machine, SAILOR), by_row(sailor, machine, SAILOR), ()))
    rows = pd.concat(tables, ignore_index=True).sort_values(["data", "row"])
    rows.to_csv(RESULT, index=False, float_format="%.5g")
    save_text(UNSEEN_FILE, "\n".join([",".join(COLUMNS), *_residuals(rows)]) + "\n")
    size = rows.assign(size=rows["held_error"].abs(), group_size=rows["group_error"].abs(), bytes_size=rows["bytes_error"].abs())
    by = size.groupby(["data", "machine", "precision"])[["size", "group_size", "inside", "bytes_size"]]
    print(by.agg("mean").assign(points=by.size()).to_string(float_format=lambda value: f"{value:.3f}"))

    from experiments.trust import record

    record()


if __name__ == "__main__":
    main()
