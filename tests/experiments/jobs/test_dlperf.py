"""DLPerf's models on V100: the committed rows are what Plans predict, and hold what is claimed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.fidelity.dlperf import cases, predicted_s

ROWS = pd.read_csv(Path(__file__).parents[3] / "experiments/results/dlperf.csv")


def test_resnet_and_bert_on_1_to_32_devices_are_within_12_percent_in_the_mean_and_insightface_within_15() -> None:
    face = ROWS["table"].str.startswith("InsightFace")
    assert (len(ROWS[~face]), len(ROWS[face])) == (16, 6)
    assert ROWS[~face]["error"].abs().mean() <= 0.12
    assert ROWS[face]["error"].abs().mean() <= 0.15


@pytest.mark.thorough
def test_a_committed_row_is_what_its_plan_predicts() -> None:
    case = next(case for case in cases() if (case.table, case.gpus) == ("BERT-base fp32", 1))
    kept = ROWS[(ROWS["table"] == case.table) & (ROWS["gpus"] == 1)].iloc[0]
    assert predicted_s(case.plan()) == pytest.approx(kept["sim_s"], rel=1e-3)
    assert case.paper_s == pytest.approx(kept["paper_s"], rel=1e-3)
