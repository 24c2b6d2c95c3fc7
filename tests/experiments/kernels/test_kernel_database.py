"""The kernel database: its committed errors keep what is promised, and its fit finds the constants that made the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.common.robust_fit import fitted
from experiments.kernel_database.models import MODELS, launches
from experiments.kernel_database.whole_models import fitted_law, share_law
from planner.cost.kernels import device_sheet

RESULTS = Path(__file__).parents[3] / "experiments/results"


def test_the_committed_errors_of_what_was_left_out_are_within_what_is_promised() -> None:
    rows = pd.read_csv(RESULTS / "kernel_summary.csv").set_index("label")
    assert rows.loc["product, a fifth, all", "median_error"] <= 0.06
    assert rows.loc["product, a fifth, all", "p90_error"] <= 0.15
    assert rows.loc["attention, a fifth, all", "median_error"] <= 0.08
    assert rows.loc["model, a kind of device, all", "mean_error"] <= 0.12


def test_the_fit_finds_the_constants_that_made_the_data_beside_a_tenth_of_outliers() -> None:
    x = np.linspace(1.0, 9.0, 200)
    made = np.log(np.array([2.0, 0.5]))
    seen = made[0] + np.exp(made[1]) * np.log(x)
    seen[::10] += 1.0
    found = fitted(lambda c: c[0] + np.exp(c[1]) * np.log(x) - seen, np.zeros(2), np.full(2, -3.0), np.full(2, 3.0)).x
    assert np.exp(found) == pytest.approx([2.0, 0.5], rel=0.01)


def test_a_share_follows_the_watts_per_flop_of_the_other_devices() -> None:
    shares = {"h100-sxm": 0.7, "l4": 0.35, "mi210": 0.55, "t4": 0.62, "v100-pcie": 0.75, "a100-40gb-pcie": 0.75}
    _, _, most = fitted_law(shares)
    assert share_law(shares, device_sheet("p100-pcie")) == pytest.approx(most)
    assert share_law(shares, device_sheet("mi250")) < share_law(shares, device_sheet("h100-pcie")) <= most


def test_a_training_step_has_three_times_the_flop_of_a_forward_pass() -> None:
    def flop(train: bool) -> int:
        kernels = launches(MODELS["gpt2_large"], 2, 1024, train=train, fused=False)
        return sum(2 * kernel.times * int(np.prod(kernel.product)) for kernel in kernels if kernel.product is not None)

    assert flop(True) == 3 * flop(False)
