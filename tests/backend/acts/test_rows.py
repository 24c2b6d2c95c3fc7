"""The rows of a long run: those of the steps that are asked for stay, whatever their number, and memory holds the newest alone."""

from __future__ import annotations

import csv
import random
from array import array
from pathlib import Path

import handmade
import pytest

from backend.acts.rows import NEWEST, ActRow, RowLog
from experiments.benchmarks.long_run import RESULTS, SELECTION, growth_bytes
from planner.ir.traces.held import StepSelection

PLAN = handmade.pipeline(2)
ACTS = [task.acts for task in PLAN.tasks]


def rows_of(count: int) -> list[ActRow]:
    """Acts of a rank, which run ahead of each other by up to two steps."""
    rng = random.Random(count)
    places = [rng.randrange(len(ACTS)) for _ in range(count)]
    steps = [max(0, n // 10 + rng.randrange(-1, 2)) for n in range(count)]
    return [(place, step * ACTS[place], n, n + 1, n + 2) for n, (place, step) in enumerate(zip(places, steps, strict=True))]


@pytest.mark.parametrize("count", [0, 1, NEWEST, 2 * NEWEST - 1, 2 * NEWEST, 5 * NEWEST + 3])
@pytest.mark.parametrize("text", ["first:2,last:3,every:100", "first:1", "every:1"])
def test_the_rows_of_the_asked_steps_stay_in_order(tmp_path: Path, count: int, text: str) -> None:
    rows = rows_of(count)
    spans = StepSelection.parse(text).ranges(count // 10 + 3)
    log = RowLog(PLAN, spans, tmp_path / "rows")
    for number, row in enumerate(rows, 1):
        log.append(row)
        assert len(log) == number
    assert log[max(0, count - 100) : count] == rows[max(0, count - 100) :]
    asked = [row for row in rows if any(first <= row[1] // ACTS[row[0]] < end for first, end in spans)]
    assert list(array("q", log.finish())) == [number for row in asked for number in row]


def test_no_more_than_the_newest_rows_lie_in_memory(tmp_path: Path) -> None:
    log = RowLog(PLAN, ((0, 1),), tmp_path / "rows")
    for number, row in enumerate(rows_of(10 * NEWEST)):
        log.append(row)
        if number % 100 == 0:
            assert len(log[0 : len(log)]) <= 2 * NEWEST  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="not among the newest"):
        log[0]


def test_memory_is_flat_over_a_million_acts_and_was_not_where_all_acts_are_kept() -> None:
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, str | int | float]] = list(csv.DictReader(file))  # type: ignore[arg-type]  # of text
    assert {row["kind"] for row in rows} == {"run"}
    assert max(int(row["acts"]) for row in rows if row["trace_steps"] == SELECTION) > 0.99e6
    assert growth_bytes(rows, SELECTION) <= 5e6 < growth_bytes(rows, "all")
