"""The bubble rates that arXiv:2401.10241 publishes, from the times that it publishes (experiments/zero_bubble.py runs all sizes)."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.zero_bubble import TOLERANCE, compute, deviations


@pytest.fixture(scope="module", params=[1, pytest.param(6, marks=pytest.mark.thorough)])
def table(request: pytest.FixtureRequest) -> pd.DataFrame:
    """One, or 6, of the 12 configurations: two models on 8 devices, in seconds rather than minutes."""
    return deviations(compute({"1.5B", "6.2B"}, most=request.param))


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", TOLERANCE)
def test_bubble_rates_equal_the_published_ones_within_the_tolerance(table: pd.DataFrame, schedule: str) -> None:
    rows = table[table.schedule == schedule]
    assert len(rows) in (1, 6)
    assert rows.deviation.abs().max() <= TOLERANCE[schedule]


@pytest.mark.parametrize("schedule", ["1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"])
def test_these_bubble_rates_equal_the_published_ones_to_4_decimals(table: pd.DataFrame, schedule: str) -> None:
    rows = table[table.schedule == schedule]
    assert list(rows.bubble_sim.round(4)) == list(rows.bubble_paper)


def test_the_interleaved_rows_differ_by_p_hops(table: pd.DataFrame) -> None:
    rows = table[table.schedule == "1F1B-I"]
    assert ((rows.hops / rows.pp).round(1) == 1.0).all()


def test_prediction_is_never_slower_than_the_measurement(table: pd.DataFrame) -> None:
    measured = table[table.samples_paper.notna()]
    assert (measured.samples_sim > measured.samples_paper).all()
