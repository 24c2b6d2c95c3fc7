"""The folder of claims, rows, traces and a picture that becomes a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.ir.files import save_trace
from tests.regista.report.report_cases import CLAIMS, PIXEL, PLAN, RUN, SIM


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("figures", "results"):
        (tmp_path / "e" / name).mkdir(parents=True)
    (tmp_path / "e/claims.toml").write_text(CLAIMS)
    (tmp_path / "e/figures/f.png").write_bytes(PIXEL)
    (tmp_path / "e/results/r.csv").write_text("model,sim_step_s,run_step_s\na,1.5,1.0\n")
    save_trace(PLAN, SIM, str(tmp_path / "e/sim.json"))
    save_trace(PLAN, RUN, str(tmp_path / "e/run.json"))
    return tmp_path / "e"
