"""A sweep that was measured, as files: a manifest of which one relation holds, one breaks and one cannot be checked, and rows of its points."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO

from regista.sweep import Manifest, points_rows
from regista.sweep.columns import all_columns

MANIFEST = """
claim = "a claim <of> ours"
source = "here"
performer = "run"
axes = ["label"]
expect = ["max(abs(error_step_time)) <= 0.3", "min(run_step_time) > 2.0", "max(error_register_bytes) <= 9"]
[cluster]
name = "local:2"
[run]
steps = 3
[[points]]
label = "a"
model = { name = "zoo:mlp", depth = [2, 3] }
plan = { stages = 1, mesh = "2" }
"""
"""Two points; 'held', 'broken' and 'not checked' for measured_csv(manifest, ((1.0, 1.1), (3.0, 2.9)))."""


def measured_csv(manifest: Manifest, times_s: Sequence[tuple[float, float]]) -> str:
    """Every point of the manifest as performed; times_s: a step's (sim, run) per point.  No register was counted."""
    text = StringIO()
    lines = csv.DictWriter(text, all_columns(manifest.points), restval="", lineterminator="\n")
    lines.writeheader()
    for row, (sim_s, run_s) in zip(points_rows([], manifest.points), times_s, strict=True):
        measured = {"sim_step_s": sim_s, "run_step_s": run_s, "error_step_share": sim_s / run_s - 1}
        lines.writerow({**row, "phase": "performed", "status": "ok", **measured})
    return text.getvalue()
