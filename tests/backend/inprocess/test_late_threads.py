"""Random delays on real threads change no number, and races that are planted show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest
import torch

from backend.acts.bookkeeper import Bookkeeper
from backend.acts.links import Link, Node, Stream
from backend.inprocess.engine import Engine
from backend.inprocess.rendezvous import JointAct
from experiments.gpu import late_streams, late_threads


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(late_streams, "HANG_S", 3.0)


@pytest.mark.thorough
def test_delays_of_threads_change_no_number_and_no_run_hangs() -> None:
    rows = late_threads.late_runs(8, seed=5)
    assert [row.plan for row in rows] == list(late_streams.WAYS)
    assert sum(row.runs for row in rows) == 8 and all(row.delays > 0 for row in rows)
    assert sum(row.wrong + row.hung for row in rows) == 0


def announce_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """An act's end is accounted for before its work is done: readers may be quicker."""
    work, ended = Engine._do, Engine._ended

    def late(self: Engine, joint: JointAct) -> JointAct | None:
        follower = ended(self, joint)
        work(self, joint)
        return follower

    monkeypatch.setattr(Engine, "_do", lambda self, joint: None)
    monkeypatch.setattr(Engine, "_ended", late)


def lost_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message in 50 is lost."""
    hear, count = Bookkeeper._hear, iter(range(10**9))

    def most(self: Bookkeeper, links: Iterable[Link], ended: Node | None = None) -> list[Stream]:
        return hear(self, [link for link in links if next(count) % 50 != 49], ended)

    monkeypatch.setattr(Bookkeeper, "_hear", most)


@pytest.mark.thorough
@pytest.mark.parametrize("plant", [announce_before_the_work, lost_message])
def test_planted_races_show(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = late_threads.perform_alone
    wanted: dict[str, object] = {}
    for ranks, options in late_streams.WAYS.values():
        plan, source = late_streams.planned(ranks, options)
        wanted[plan.plan_id] = alone(plan, source.initial_state(plan.micro_batches), source.batch, late_streams.STEPS, gradients=True)
    monkeypatch.setattr(late_threads, "perform_alone", lambda plan, *rest, **options: wanted[plan.plan_id])
    plant(monkeypatch)  # type: ignore[operator]
    assert sum(row.wrong + row.hung for row in late_threads.late_runs(4, seed=5)) > 0


def test_the_rows_on_record_show_no_wrong_number() -> None:
    rows = pd.read_csv(Path(late_threads.RESULTS))
    assert rows.runs.sum() >= 500 and rows.wrong.sum() == 0 and rows.hung.sum() == 0
