"""What a finished run on a GPU left, copied to where it is committed; the report and the paper read it there.

results/gpu.csv          the rows; steps and peaks in columns that the report lays over each other
results/gpu_lines.csv    which lines hold, and on what
results/gpu/             facts of the GPU, parts, kernel table, cluster, traces (packed)
figures/gpu_*.png        steps, and Gantt above Gantt
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path

import pandas as pd

__all__ = ["publish"]

COLUMNS = {"step": "step_s", "step by the kernel table": "table_step_s"}
"""Quantity -> the column in which it is compared; peaks by device: peak_bytes."""


def publish(out: Path, root: Path = Path(__file__).parents[1]) -> int:
    """Copy it; returns the exit code: 1 where no run has ended.

    Args:
        root: holds ``results`` and ``figures``.
    """
    if not (out / "must_show.csv").exists():
        print(f"{out} holds no finished run; python -m experiments.gpu writes one", file=sys.stderr)
        return 1
    results, figures = root / "results", root / "figures"
    kept = results / "gpu"
    kept.mkdir(parents=True, exist_ok=True)
    facts = json.loads((out / "about.json").read_text())
    rows = pd.read_csv(out / "rows.csv")
    for number, row in rows.iterrows():
        column = "peak_bytes" if str(row["quantity"]).startswith("peak of") else COLUMNS.get(str(row["quantity"]))
        if column is not None and pd.notna(row["sim"]):
            rows.loc[number, [f"sim_{column}", f"run_{column}"]] = row["sim"], row["run"]  # type: ignore[index]
    rows.rename(columns={"sim": "predicted", "run": "measured"}).to_csv(results / "gpu.csv", index=False)
    held = pd.read_csv(out / "must_show.csv")
    held.assign(**{key: facts.get(key, "") for key in ("gpu", "torch", "driver_version", "date")}).to_csv(
        results / "gpu_lines.csv", index=False
    )
    for path in (out / "about.json", out / "parts.csv", *sorted((out / "kernels").glob("*"))):
        if path.name != "rows.csv":
            shutil.copy(path, kept / path.name)
    for trace in sorted(out.glob("*/*.json")):
        if trace.name.endswith((".run.json", ".sim.json")):
            with trace.open("rb") as plain, gzip.GzipFile(kept / f"{trace.name}.gz", "wb", mtime=0) as packed:
                shutil.copyfileobj(plain, packed)
    for picture in (out / "steps.png", *sorted(out.glob("*/gantt-*.png"))):
        shutil.copy(picture, figures / f"gpu_{picture.stem}.png")
    print(f"copied to {results} and {figures}; commit them, then make report and make paper")
    return 0
