"""Few rows to fit on: how they are drawn, and that what is scored was not fitted to."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.fidelity.jobs.few import DRAWS, RESULT, ROWS, spread

GROUPS = ["a"] * 50 + ["b"] * 3 + ["c"]


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_drawn_in_turn_from_every_group(seed: int) -> None:
    drawn = [GROUPS[place] for place in spread(GROUPS, 9, seed)]
    assert {name: drawn.count(name) for name in "abc"} == {"a": 5, "b": 3, "c": 1}
    assert spread(GROUPS, 9, seed) == spread(GROUPS, 9, seed)


def test_committed_rows_leave_out_what_was_fitted_to_and_are_within_what_was_asked() -> None:
    rows = pd.read_csv(RESULT)
    ways = {str(way): part for way, part in rows.groupby("way")}
    assert len(ways["20 rows"]) == DRAWS * (len(ways["out of the box"]) - ROWS)
    size = {way: part["error"].abs() for way, part in ways.items()}
    assert size["out of the box"].mean() <= 0.10 and size["out of the box"].max() <= 0.25
    by_draw = size["20 rows"].groupby(ways["20 rows"]["draw"])
    assert (by_draw.mean() <= 0.05).all() and (by_draw.max() <= 0.12).all()
    assert size["one constant, fp8"].mean() <= 0.08
