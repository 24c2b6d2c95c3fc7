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
from regista.trust import LEVEL, Scored, conformal_width, left_out_widths
from regista.trust.conformal import NEAREST


def scored(points: pd.DataFrame) -> ScoredSet:
    return ScoredSet(
        name="a", quantity="seconds", points=points, predicted="sim", given="run", left_out="all", command="none", published=len(points) + 2
    )


def test_committed_table_is_what_the_committed_rows_say(tmp_path: Path) -> None:
    record(tmp_path / "trust.csv", tmp_path / "trust.png")
    # The last bits of a logarithm differ from processor to processor.
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "trust.csv"), pd.read_csv(RESULTS / "trust.csv"), rtol=1e-9, atol=0)
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
    widths = left_out_widths([Scored(error, i % groups) for i, error in enumerate(errors)])
    held = sum(abs(error) <= width for error, width in zip(errors, widths, strict=True)) / 600
    assert abs(held - LEVEL) < 0.03


def test_the_90_percent_intervals_of_every_set_hold_in_85_to_95_percent_of_its_points() -> None:
    rows = pd.read_csv(RESULTS / "trust.csv")
    known = rows[rows["published"].notna() & (rows["known"] > 0)]
    assert len(known) >= 25
    out = known[(known["inside"] < 0.85) | (known["inside"] > 0.95)]
    assert out.empty, out[["set", "quantity", "known", "inside"]].to_string()


def test_where_the_own_points_are_few_those_of_sets_with_the_same_constants_speak_too() -> None:
    few = [Scored(0.1, "a"), *[Scored(0.1, "b")] * 8]
    beside = [Scored(0.3, "c")] * 20
    assert left_out_widths(few)[0] == math.inf and left_out_widths(few, beside)[0] == 0.3
    many = [Scored(0.1, "a"), *[Scored(0.1, "b")] * NEAREST]
    assert left_out_widths(many, beside)[0] == 0.1


def test_a_points_group_is_left_out_of_the_sets_beside_it_too() -> None:
    few = [Scored(0.1, "a"), *[Scored(0.1, "b")] * 9]
    assert left_out_widths(few, [Scored(9.0, "a")] * 50)[0] == 0.1


def test_of_other_sets_the_nearest_points_speak_and_after_the_own_ones() -> None:
    own = [Scored(0.1, "a", (0.0,)), *[Scored(0.1, "b", (1.0,))] * 40]
    near, far = [Scored(0.2, "c", (0.0,))] * 20, [Scored(5.0, "d", (3.0,))] * 500
    assert left_out_widths(own, [*near, *far])[0] == 0.2


def test_a_width_needs_nine_errors() -> None:
    assert conformal_width([0.1] * 8) == math.inf
    assert conformal_width([*[0.1] * 8, -0.3]) == 0.3
