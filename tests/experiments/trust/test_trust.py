"""Sets of measurements and their errors: the committed table is what the committed rows say, and the page shows all of it."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pandas as pd
import pytest

from experiments.trust.record import record
from experiments.trust.scored import COLUMNS, ScoredSet, row_of
from experiments.trust.sets import RESULTS
from regista.trust import LEVEL, conformal_width, left_out_widths


def scored(points: pd.DataFrame) -> ScoredSet:
    return ScoredSet(
        name="a", quantity="seconds", points=points, predicted="sim", given="run", left_out="all", command="none", published=len(points) + 2
    )


def test_committed_table_is_what_the_committed_rows_say(tmp_path: Path) -> None:
    record(tmp_path / "trust.csv", tmp_path / "trust.png")
    assert (tmp_path / "trust.csv").read_text() == (RESULTS / "trust.csv").read_text()
    assert (tmp_path / "trust.png").stat().st_size > 10_000


def test_every_set_has_errors_and_says_what_is_missing() -> None:
    rows = pd.read_csv(RESULTS / "trust.csv")
    assert tuple(rows.columns) == COLUMNS
    done = rows[rows["points"] > 0]
    assert done["mean_error"].notna().all()
    fewer = done[(done["published"] > done["points"])]
    assert fewer["missing"].notna().all(), fewer["set"].tolist()
    assert rows[rows["points"] == 0]["missing"].notna().all()


def test_interval_of_few_points_is_none() -> None:
    points = pd.DataFrame({"device": "d", "group": list("abcdefgh"), "error": [0.1] * 8})
    ((device, part),) = scored(points).parts()
    row = row_of(scored(points), device, part)
    assert row["points"] == 8 and row["published"] == 10
    assert math.isnan(float(str(row["inside"]))) and math.isnan(float(str(row["half_width"])))


@pytest.mark.parametrize("groups", [1, 30])
def test_left_out_intervals_hold_for_the_level_of_exchangeable_points(groups: int) -> None:
    rng = random.Random(groups)
    errors = [rng.gauss(0, 0.1) for _ in range(600)]
    widths = left_out_widths(errors, [i % groups for i in range(600)])
    held = sum(abs(error) <= width for error, width in zip(errors, widths, strict=True)) / 600
    assert abs(held - LEVEL) < 0.03


def test_a_width_needs_nine_errors() -> None:
    assert conformal_width([0.1] * 8) == math.inf
    assert conformal_width([*[0.1] * 8, -0.3]) == 0.3
