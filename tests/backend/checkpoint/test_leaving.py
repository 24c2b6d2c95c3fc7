"""The last state of a run on processes: in the files of a checkpoint, read when a tensor is asked for, the same to the last bit."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_gpt import plan_for, program

import backend
import backend.launch.processes as processes
from backend import run
from backend.checkpoint import SaveRequest
from backend.checkpoint.leaving import final_state, leave_state, left_file
from backend.checkpoint.shares import shares
from backend.memory.blocks import initial_states
from experiments.run_end.__main__ import RESULTS
from planner.ir.errors import InvalidFile
from tests.backend.checkpoint.checkpoint_cases import drawn_state

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks on .* cores")


@pytest.mark.parametrize("way", ["data2", "zero3_pipeline2", "data2_tensor2"])
def test_what_ranks_leave_is_the_whole_state_and_outlives_the_folder(way: str, tmp_path: Path) -> None:
    plan, given = plan_for(way), drawn_state(1)
    files = []
    for rank in range(plan.num_ranks):
        parts = initial_states(plan, rank, given)
        left = leave_state(tmp_path, plan, rank, lambda regst, index, parts=parts: parts[regst, index])  # type: ignore[misc]
        assert [f"state/{file.name}" for file in left] == [name for name in [left_file(plan, rank)] if name is not None]
        files += left
    final = final_state(plan, tmp_path, files, steps=1)
    shutil.rmtree(tmp_path)
    assert set(final) == {entry.name for entry in plan.states} and len(final) == len(set(final))
    for name, value in final.items():
        assert torch.equal(value, given[name]), name
        assert value is not final[name]
    with pytest.raises(KeyError):
        final["no such state"]


def test_each_element_leaves_once_however_many_ranks_hold_it(tmp_path: Path) -> None:
    plan, given = plan_for("data2"), drawn_state(1)
    files = []
    for rank in range(plan.num_ranks):
        parts = initial_states(plan, rank, given)
        files += leave_state(tmp_path, plan, rank, lambda regst, index, parts=parts: parts[regst, index])  # type: ignore[misc]
    whole_bytes = sum(given[name].nbytes for name in {share.state.name for share in shares(plan)})
    assert whole_bytes <= sum(file.size_bytes for file in files) < 1.5 * whole_bytes + 64 * 1024


def test_a_file_that_a_rank_did_not_leave_is_refused_by_name(tmp_path: Path) -> None:
    plan, given = plan_for("data2"), drawn_state(1)
    parts = initial_states(plan, 0, given)
    files = leave_state(tmp_path, plan, 0, lambda regst, index: parts[regst, index])
    (tmp_path / "state" / files[0].name).unlink()
    with pytest.raises(InvalidFile, match=r"rank0000\.pt is missing"):
        final_state(plan, tmp_path, files, steps=1)


@pytest.mark.processes
@pytest.mark.parametrize("restarts", [0, 1])
def test_first_values_are_gone_before_the_end_unless_another_attempt_may_need_them(
    restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To remove 1 GB took 0.1 s, or as long as the disk still wrote it, after the last act."""
    there: list[bool] = []

    def remove(folder: Path, **options: object) -> None:
        there.append((folder / "state.pt").exists())
        shutil.rmtree(folder)

    monkeypatch.setattr(processes, "shutil", SimpleNamespace(rmtree=remove))
    plan = plan_for("one")
    run(plan, program().initial_state(plan.micro_batches), program().batch, 1, timeout_s=120, workdir=tmp_path, max_restarts=restarts)
    assert there == [restarts == 1]


@pytest.mark.processes
def test_a_run_leaves_the_state_that_the_reference_ends_with_and_no_folder(tmp_path: Path) -> None:
    plan = plan_for("data2")
    state = program().initial_state(plan.micro_batches)
    outcome = run(plan, state, program().batch, 2, timeout_s=120, workdir=tmp_path)
    assert not list(tmp_path.iterdir())
    expected = backend.perform(plan, state, program().batch, 2).states
    assert set(outcome.states) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(outcome.states[name], value)


@pytest.mark.processes
def test_a_run_that_saves_leaves_its_checkpoint_alone_and_one_that_keeps_no_states_nothing(tmp_path: Path) -> None:
    plan, folder = plan_for("data2"), tmp_path / "checkpoints"
    state = program().initial_state(plan.micro_batches)
    saved = run(plan, state, program().batch, 2, timeout_s=120, checkpoint=SaveRequest(folder=str(folder)))
    shutil.rmtree(folder)
    left = run(plan, state, program().batch, 2, timeout_s=120)
    for name, value in left.states.items():
        assert torch.equal(saved.states[name], value), name
    assert not run(plan, state, program().batch, 2, timeout_s=120, keep_states=False).states


def test_the_launcher_takes_no_memory_for_the_state_at_the_end_and_took_it_before() -> None:
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == {"run"} and max(float(row["state_MB"]) for row in rows) > 990
    for row in rows:
        grown_MB = float(row["launcher_grown_MB"])
        assert (grown_MB <= 16) if row["leaves"] != "temporary file" else (grown_MB >= 0.9 * float(row["state_MB"])), row
    end_s = {(row["leaves"], float(row["state_MB"]) > 990): float(row["end_s"]) for row in rows}
    assert 2 * end_s["memory", True] < end_s["files", True] < end_s["temporary file", True] / 2
