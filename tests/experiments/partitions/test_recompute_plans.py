"""What Plans compute again, beside the published costs, on the committed rows; a small model is a smoke test of experiments.reproduce."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.recompute.plans import ASKED

ROWS = Path(__file__).parents[3] / "experiments/results/recompute_plans.csv"


def test_the_committed_rows_cost_more_the_less_they_keep_and_lie_by_the_paper() -> None:
    table = pd.read_csv(ROWS).set_index("recompute")
    assert tuple(table.index) == ASKED and set(table.kind) == {"sim"}
    again = table.sim_again
    assert 0 == again["none"] < again["80%"] < again["60%"] < again["40%"] < again["20%"] < again["blocks"]
    assert 0.04 <= again["attention"] <= 0.07  # Table 4 of the paper: 4 to 7 %
    assert table.sim_kept_MB["none"] == pytest.approx(table.theory_MB["none"], rel=0.05)
    assert table.sim_layer_ms["none"] == pytest.approx(table.paper_layer_ms["none"], rel=0.1)
