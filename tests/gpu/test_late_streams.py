"""Random delays on streams without hardware: no wrong number and no hang; and a runtime that forgets to wait is caught by them."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import pandas as pd
import pytest

from backend.inprocess.lanes.hazards import Hazards, Mark
from experiments.gpu import late_streams

pytestmark = pytest.mark.thorough


def test_runs_whose_streams_are_late_at_random_give_the_same_numbers_to_the_last_bit() -> None:
    rows = late_streams.delayed_runs(12, seed=5)
    assert sum(row.delays for row in rows) > 1200
    assert [(row.wrong, row.hung) for row in rows] == [(0, 0)] * len(rows)


def test_a_runtime_that_does_not_wait_for_who_wrote_what_it_reads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Hazards, key: Hashable) -> list[Mark]:
        return []

    monkeypatch.setattr(Hazards, "read", forgets)
    assert sum(row.wrong + row.hung for row in late_streams.delayed_runs(8, seed=5)) > 0


def test_the_committed_rows_are_of_ten_thousand_runs() -> None:
    rows = pd.read_csv(Path(late_streams.RESULTS))
    assert rows["runs"].sum() >= 10_000 and rows["wrong"].sum() == rows["hung"].sum() == 0


def test_a_command_that_was_ended_goes_on_behind_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_streams, "_RUNS_PER_ROW", 2)
    whole = late_streams.delayed_runs(12, seed=5)
    told: list[late_streams.Counted] = []
    again = late_streams.delayed_runs(12, seed=5, begun=whole[:3], on_row=told.append)
    assert [row.runs for row in whole] == [2, 1] * 4
    assert again == whole and told == whole[3:]
