"""Plans and torch's own means train the same thing: each rival's losses are ours, and turns are cut where the pauses were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.ops.cpu import products
from backend.ops.cpu.products import Library
from experiments.rivals import kernels
from experiments.rivals.job import JOBS, Job, Way, from_json, plan_of, to_json
from experiments.rivals.side import ours, theirs
from experiments.rivals.turns import same_losses, turns_of
from planner.ir.collective import Collective
from planner.ir.errors import Mismatch
from planner.ir.plan import Boxing, TaskKind

TINY = "zoo:gpt?layers=2&width=16&heads=2&vocab=32&batch=4&seq=8&tied=0"


def tiny(job: Job) -> Job:
    """The same way of training, at the smallest size that has all its parts."""
    model = f"{TINY}&dropout=0.1" if job.way is Way.DROPOUT else TINY
    four = job.way in (Way.INTERLEAVED, Way.ZERO_BUBBLE)  # both have four stages on two ranks
    return replace(
        job,
        model=model.replace("layers=2", "layers=4") if four else model,
        micro_batches=min(job.micro_batches, 4),
        cuts=job.cuts if four else (1,) * len(job.cuts),
        steps=3,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    "job", [pytest.param(job, id=job.way.value, marks=[pytest.mark.thorough] * (job.way in (Way.DROPOUT, Way.COMPILED))) for job in JOBS]
)
def test_rival_computes_the_losses_of_the_plan(job: Job, tmp_path: Path) -> None:
    small = tiny(job)
    (tmp_path / "job.json").write_text(to_json(small))
    close = small.close if job.way is not Way.DROPOUT else 0.1  # few numbers are drawn
    our_losses, their_losses = ours(small)["losses"], theirs(small, tmp_path)["losses"]
    assert len(our_losses) == small.steps
    assert our_losses == pytest.approx(their_losses, rel=close)


@pytest.mark.parametrize(
    ("way", "wanted"),
    [
        ("data", {Collective.ALL_REDUCE}),
        ("dropout", {Collective.ALL_REDUCE}),
        ("sharded", {Collective.ALL_GATHER, Collective.REDUCE_SCATTER}),
        ("kept", {Collective.ALL_GATHER, Collective.REDUCE_SCATTER}),
        ("pipeline", set()),
        ("interleaved", set()),
        ("zero-bubble", set()),
        ("compiled", {Collective.ALL_REDUCE}),
        ("single", set()),
        ("mixed", {Collective.ALL_REDUCE}),
        ("mixed-sharded", {Collective.ALL_GATHER, Collective.REDUCE_SCATTER}),
    ],
)
def test_plan_moves_parameters_and_gradients_as_its_rival_does(way: str, wanted: set[Collective]) -> None:
    (job,) = (job for job in JOBS if job.way.value == way)
    plan = plan_of(tiny(job))
    large = {t.body.collective for t in plan.tasks if isinstance(t.body, Boxing) and len(t.reads) > 1}
    assert large == wanted
    assert any(t.kind is TaskKind.TRANSFER for t in plan.tasks) == job.way.in_stages


def test_job_survives_its_text() -> None:
    assert [from_json(to_json(job)) for job in JOBS] == list(JOBS)


@given(
    turns=st.lists(st.lists(st.floats(0.01, 0.1), min_size=4, max_size=8), min_size=1, max_size=5),
    pauses=st.lists(st.floats(0.5, 5.0), min_size=6, max_size=6),
    cold=st.integers(0, 2),
)
def test_turns_are_what_lies_between_pauses_less_the_cold_steps(turns: list[list[float]], pauses: list[float], cold: int) -> None:
    used = pauses[: len(turns) + 1]
    times = [0.05, 0.05]
    for pause, turn in zip(used, [*turns, [0.05]], strict=True):
        times += [pause + 0.05, *turn]
    assert turns_of(times, used, cold=cold) == tuple(tuple(turn[cold:]) for turn in turns)


def test_a_step_as_long_as_a_pause_is_refused() -> None:
    with pytest.raises(Mismatch, match=r"pause of 1\.000 s is on record"):
        turns_of([0.1, 1.1, 0.1, 4.0, 0.1, 2.1, 0.1], [1.0, 2.0])


def test_losses_that_differ_are_refused() -> None:
    with pytest.raises(Mismatch, match=r"step 1: our loss is 2\.0"):
        same_losses([1.0, 2.0], [1.0, 2.1])


def test_both_sides_of_a_pair_of_kernels_give_the_same_numbers_and_a_row_is_printed_per_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in (kernels, products):
        monkeypatch.setattr(module, "library", lambda: Library.OPENBLAS)
    for pair in kernels.pairs(2):
        torch.testing.assert_close(pair.ours(), pair.torchs(), rtol=1e-4, atol=1e-4)
    assert kernels.main(["--rounds", "1", "--products", "2", "--csv", str(tmp_path / "rows.csv")]) == 0
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert list(rows.kind) == [
        "masked_fill, causal, -inf",
        "masked_fill, causal, 0",
        "masked_fill, irregular, -inf",
        "gelu",
        "gelu, gradient",
        "product",
        "product",
    ]
    assert "large products by OpenBLAS (run)" in capsys.readouterr().out and (rows.share > 0).all()
