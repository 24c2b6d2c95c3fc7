"""Bad jobs and round trips: the committed rows hold what is claimed, and the code of today gives them again."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pandas as pd
import pytest

from experiments.advise.bad_jobs import BAD, judged, row_of
from experiments.advise.round_trip import megatron_rows, torchtitan_rows
from regista.jobs.advice import Limits

RESULTS = Path(__file__).parents[3] / "experiments/results"


def test_the_first_line_of_each_bad_job_names_its_fault_and_the_better_one_is_quicker_by_what_it_claims() -> None:
    rows = pd.read_csv(RESULTS / "advise_bad.csv")
    assert set(rows["job"]) == set(BAD) and len(rows) == 20
    assert rows["named"].all() and rows["better"].notna().all()
    ran = rows[rows["fits"]]
    assert (ran["claimed_gain"] > 0.1).all()
    assert ran["gain_again"].to_numpy() == pytest.approx(ran["claimed_gain"].to_numpy(), rel=1e-6)
    assert rows["better_step_s"].notna().all()


@pytest.mark.thorough
def test_the_bad_jobs_of_today_are_those_that_are_committed(tmp_path: Path) -> None:
    rows = pd.read_csv(RESULTS / "advise_bad.csv").set_index("job")
    for name in list(BAD)[::4]:
        row = row_of(name, judged(name, tmp_path, Limits(seconds=600.0, predictions=16)), tmp_path)
        assert row["named"] and row["step_s"] == pytest.approx(rows.loc[name, "step_s"], rel=1e-4)
        assert row["better_step_s"] == pytest.approx(rows.loc[name, "better_step_s"], rel=1e-4)


def test_every_job_that_a_row_tells_goes_out_as_it_came_in() -> None:
    rows = pd.read_csv(RESULTS / "advise_round_trip.csv")
    assert dict(rows["result"].value_counts()) == {"same job": 426, "no job": 59}
    searched = rows[(rows["result"] == "same job") & rows["why"].isna()]
    assert set(searched["flags"]) == {"same"}
    assert rows[rows["result"] == "no job"]["why"].notna().all()
    again = [row["result"] for row in [*torchtitan_rows(search=False), *islice(megatron_rows(search=False), 0, 60, 20)]]
    assert set(again) <= {"same job", "no job"} and len(again) == 8
