"""What it changes that acts of a job's Plan share the ports of their ranks: published jobs, played alone and shared.

python -m experiments.fidelity.jobs.shared      play, write results/jobs_shared.csv, print errors by set (1 minute)
                                                after experiments.fidelity.jobs, whose constants it takes
"""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pandas as pd

from experiments.fidelity.jobs.cases import FILES, UNSEEN, cases
from regista.jobs.machines import load_machine

__all__ = ["errors", "main"]

RESULT = Path(__file__).parents[2] / "results/jobs_shared.csv"


def main() -> None:
    rows = []
    for data in (*FILES, *UNSEEN):
        for case in cases(data)[0]:
            at, machine = case.job.layout, load_machine(case.job.machine)
            if isnan(case.paper_s):
                continue
            rows.append(
                {
                    "point": f"{data} {case.entry.row}",
                    "data": data,
                    "row": case.entry.row,
                    "job": case.entry.name,
                    "machine": case.job.machine,
                    "precision": case.job.running.precision.value,
                    "devices": case.job.devices,
                    "pp": at.pp,
                    "vp": at.vp,
                    "paper_s": case.paper_s,
                    "alone_sim_s": case.sim_s(machine, alone=True),
                    "sim_s": case.sim_s(machine),
                }
            )
    made = pd.DataFrame(rows)
    made["longer"] = made["sim_s"] / made["alone_sim_s"] - 1
    made["alone_error"], made["error"] = (made[name] / made["paper_s"] - 1 for name in ("alone_sim_s", "sim_s"))
    made.to_csv(RESULT, index=False, float_format="%.6g")
    print(errors(made).to_string(float_format=lambda value: f"{value:.4f}"))


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute errors by table, machine and precision: alone, and shared."""
    sizes = rows.assign(alone_error=rows["alone_error"].abs(), error=rows["error"].abs())
    by = sizes.groupby(["data", "machine", "precision"])
    return by[["alone_error", "error"]].mean().assign(longest=by["longer"].max(), points=by.size())


if __name__ == "__main__":
    main()
