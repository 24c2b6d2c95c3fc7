"""The front door to data: the verbs 'loading', 'run' and 'calibrate' with --data, batches of Python's, and resuming without any state of the reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import regista
from backend.data.feed import python_feed
from planner.ir.errors import InvalidProgram
from planner.ir.files import load_plan
from planner.ir.plan import TaskKind
from regista.api import program_of
from regista.cli import main

SEQ = 8
MODEL = f"zoo:gpt?layers=1&batch=8&seq={SEQ}&vocab=32&width=8&heads=2"


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    np.random.default_rng(0).integers(0, 32, 64 * SEQ + 1).astype("<u2").tofile(tmp_path / "tokens.bin")
    return f"tokens:{tmp_path}/tokens.bin?seq={SEQ}"


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    assert main(["plan", MODEL, "--cluster", "local:1", "--micro-batches", "2", "-o", str(tmp_path / "plan.json")]) == 0
    return str(tmp_path / "plan.json")


def test_loading_writes_the_plan_with_its_chain(plan_file: str, tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    out = str(tmp_path / "chained.json")
    assert main(["loading", plan_file, "--json", "--data", tokens, "--load-quota", "3", "--copy", "-o", out]) == 0
    document = json.loads(capsys.readouterr().out)
    chained = load_plan(out)
    assert document["plan_id"] == chained.plan_id
    assert document["tasks"] == ["s0.source", "s0.prepare", "s0.copy"]
    assert document["samples"] == 64 and document["steps_per_epoch"] == 8
    assert document["regsts"]["s0.source.raw"] == chained.regst["s0.source.raw"].quota == 3
    assert [t.kind for t in chained.tasks if t.kind.is_loading] == [TaskKind.SOURCE, TaskKind.PREPARE, TaskKind.COPY]


def test_a_run_with_data_needs_the_data_that_the_plan_loads(
    plan_file: str, tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "chained.json")
    assert main(["loading", plan_file, "--data", tokens, "-o", out]) == 0
    assert main(["run", out, "--steps", "2", "--performer", "reference"]) == 2
    assert "say where the data lies with --data" in capsys.readouterr().err
    assert main(["run", out, "--steps", "2", "--performer", "reference", "--data", tokens]) == 0


def test_data_without_a_plan_is_refused_by_calibrate(tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--data", tokens, "-o", str(tmp_path / "c.toml")]) == 2
    assert "no meaning without a plan" in capsys.readouterr().err


def test_too_few_samples_are_refused_before_the_run(plan_file: str, tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", plan_file, "--steps", "9", "--performer", "reference", "--data", f"{tokens}&epochs=1"]) == 2
    assert "9 steps of 8 samples need 72, the data has 64 x 1 epochs = 64; run at most 8 steps" in capsys.readouterr().err


def test_batches_of_an_iterator_are_those_of_a_function_of_the_step() -> None:
    source = program_of(MODEL)
    plan = regista.plan(source, "local:1", micro_batches=2)

    def batches() -> Iterator[tuple[Tensor, ...]]:
        step = 0
        while True:
            yield source.batch(step)
            step += 1

    outcome, wanted, plain = (
        regista.run(plan, source, steps=3, performer=regista.Performer.REFERENCE, data=data) for data in (batches(), source.batch, None)
    )
    assert outcome.losses == wanted.losses == plain.losses


def test_an_iterator_that_ends_too_early_is_told_by_its_length() -> None:
    feed = python_feed([(torch.zeros(1),), (torch.ones(1),)])
    assert feed(1)[0].item() == 1 and feed(0)[0].item() == 0
    with pytest.raises(InvalidProgram, match="the batches end after 2, step 2 needs one more"):
        feed(2)


@pytest.mark.processes
def test_a_run_that_resumes_reads_on_where_it_stopped(tokens: str, tmp_path: Path) -> None:
    source = program_of(MODEL)
    plan = regista.with_data(regista.plan(source, "local:2", mesh=(2,), micro_batches=2, pins=["input.*=S(0)"]), tokens)
    whole = regista.run(plan, source, steps=6, data=tokens, timeout_s=60)
    folder = str(tmp_path / "checkpoints")
    before = regista.run(plan, source, steps=3, data=tokens, timeout_s=60, checkpoint=folder)
    after = regista.run(plan, source, steps=6, data=tokens, timeout_s=60, checkpoint=folder, resume=True)
    assert (*before.losses, *after.losses) == whole.losses
