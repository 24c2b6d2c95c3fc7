"""Expert dispatch and combine: the constants of planner.cost.nccl.experts fitted to measured kernels, and their error on left-out rows.

python -m experiments.nccl_fit.experts     write planner/cost/nccl/interconnects/experts.csv and results/nccl_experts.csv (errors, five folds)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.nccl_fit.laws import descend
from experiments.nccl_fit.rows import AIC
from planner.cost.nccl.experts import ExpertTimes, Phase

__all__ = ["fitted_times", "seconds_of"]

HERE = Path(__file__).parent.parent
TABLE, TARGET = HERE / "paper_numbers/aic_deepep_normal.csv.gz", HERE.parent / "planner/cost/nccl/interconnects/experts.csv"
FOLDS = 5
NAMES = ("base_us", "token_ns", "sm_GBps", "port_GBps", "own_copies")
START = (30.0, 50.0, 15.0, 300.0, 0.3)
Floats = NDArray[np.float64]


def seconds_of(times: ExpertTimes, phase: Phase, rows: pd.DataFrame) -> Floats:
    """The law, shape [rows]."""
    columns = zip(rows.num_token, rows.hidden_size, rows.num_topk, rows[f"{phase.value}_sms"], strict=True)
    return np.array([times.seconds(phase, t, h, k, int(s)) for t, h, k, s in columns])


def fitted_times(phase: Phase, rows: pd.DataFrame, rooms: int) -> ExpertTimes:
    """The constants with the least loss; notify_us is the median of small dispatches, not fitted."""
    notify = rows[f"{phase.value}_notify_us"]
    notify_us = float(notify[rows.num_token <= 256].median())
    paper = np.log(1e-6 * (rows[f"{phase.value}_transmit_us"] + notify).to_numpy())

    def made(x: Floats) -> ExpertTimes:
        return ExpertTimes(rooms=rooms, notify_us=notify_us, **dict(zip(NAMES, np.exp(x).tolist(), strict=True)))

    start = np.log(START)
    x = descend(lambda x: np.log(seconds_of(made(x), phase, rows)) - paper, start, start - 6.0, start + 6.0, 40)
    return made(x)


def main() -> None:
    table = pd.read_csv(TABLE)
    constants, errors = [], []
    for (gpu, nodes), rows in table.groupby(["gpu", "node_num"]):
        rooms = int(nodes) if nodes > 1 else 4 if str(gpu).startswith("gb") else 8
        shape = rows[["hidden_size", "num_token", "num_topk", "num_experts", "dispatch_sms"]].astype(str).agg("-".join, axis=1)
        fold = pd.Series(np.random.default_rng(1).permutation(shape.nunique()) % FOLDS, index=shape.unique()).loc[shape].to_numpy()
        for phase in Phase:
            paper_s = 1e-6 * (rows[f"{phase.value}_transmit_us"] + rows[f"{phase.value}_notify_us"]).to_numpy()
            error = np.empty(len(rows))
            for number in range(FOLDS):
                held = fold == number
                error[held] = seconds_of(fitted_times(phase, rows[~held], rooms), phase, rows[held]) / paper_s[held] - 1
            times, size = fitted_times(phase, rows, rooms), np.abs(error)
            name = {"interconnect": AIC[str(gpu)], "phase": phase.value, "nodes": int(nodes), "rooms": rooms}
            numbers = {key: float(f"{getattr(times, key):.4g}") for key in ("notify_us", *NAMES)}
            constants.append(name | numbers | {"rows": len(rows), "left_out_error": float(f"{size.mean():.3g}")})
            quantiles = {"median_error": np.median(size), "p90_error": np.quantile(size, 0.9), "mean_signed": error.mean()}
            errors.append(name | {"rows": len(rows), "mean_error": size.mean()} | quantiles)
    pd.DataFrame(constants).to_csv(TARGET, index=False)
    pd.DataFrame(errors).to_csv(HERE / "results/nccl_experts.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
