"""Kernels as ``make gpu`` measured them beside what the shipped kernel model says of the same device, by kind and format.

    python -m experiments.gpu.compared.shipped        from experiments/results/gpu/kernels.json, without a GPU; writes results/gpu_kernels.csv

The model is fitted to published tables (experiments.kernel_database); of what is compared here it has seen nothing.  Small kernels are left out:
of those the launch is what is measured.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

import pandas as pd

from planner.cost.kernels.model import KernelModel
from planner.cost.kernels.table import KernelTable, load_kernels

__all__ = ["LEAST_S", "compared", "main"]

RESULTS = Path(__file__).parents[2] / "results"
LEAST_S = 10e-6
"""A shorter kernel is left out."""


def compared(table: KernelTable, model: KernelModel) -> pd.DataFrame:
    """kind, dtype, kernels, and quartiles of measured / predicted, of the kernels of LEAST_S and more."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for time in table.times:
        if time.seconds >= LEAST_S:
            dtype = time.work.dtype.value if time.work.dtype is not None else ""
            ratios[time.work.kind.value, dtype].append(time.seconds / model.work_s(time.work))
    rows = []
    for (kind, dtype), values in sorted(ratios.items()):
        low, _, high = quantiles(values, n=4) if len(values) > 1 else values * 3
        rows.append(
            {
                "kind": kind,
                "dtype": dtype,
                "kernels": len(values),
                "run_over_sim": round(median(values), 3),
                "low": round(low, 3),
                "high": round(high, 3),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    table = load_kernels(str(RESULTS / "gpu" / "kernels.json"))
    rows = compared(table, KernelModel.for_device(table.about.get("gpu", table.device)))
    rows.to_csv(RESULTS / "gpu_kernels.csv", index=False)
    print(rows.to_string(index=False))


if __name__ == "__main__":
    main()
