"""A save is there whole or not at all, whoever is killed and however full the disk is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_gpt import plan_for

import backend.checkpoint.folder as folder_module
import backend.checkpoint.owner as owner_module
from backend.checkpoint import SaveRequest, latest, verify
from backend.checkpoint.folder import remove_leftovers, steps_of, write_part
from backend.checkpoint.handover import hand_over
from backend.checkpoint.owner import Owner, TakenOver, check_free, forget, lock, saving_run, unlock
from backend.checkpoint.resume import empty_folder
from backend.checkpoint.saver import Saver
from backend.memory.blocks import initial_states
from backend.run_folder.files import Options
from backend.worker.checkpoints import begin
from planner.ir.errors import InvalidFile, RegistaError, WorkerFailed
from planner.lower.data_actors.saving import with_saving
from regista import starting
from tests.backend.checkpoint.checkpoint_cases import Store, drawn_state, full_disk, save


def test_a_killed_save_leaves_the_last_good_one_and_the_next_removes_what_it_left(tmp_path: Path) -> None:
    save(tmp_path, "data2", drawn_state(1), 1)
    half = tmp_path / ".step-00000002.killed.tmp"
    half.mkdir()
    (half / "rank0000.pt").write_bytes(b"half")
    assert latest(tmp_path) == tmp_path / "step-00000001"
    save(tmp_path, "data2", drawn_state(3), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_leftovers_are_only_our_own_hidden_folders(tmp_path: Path) -> None:
    for name in (".step-00000002.run.tmp", ".step-00000002.run.old", ".git", "notes", "step-00000002"):
        (tmp_path / name).mkdir()
    assert remove_leftovers(tmp_path) == (".step-00000002.run.old", ".step-00000002.run.tmp")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", "notes", "step-00000002"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, "one", drawn_state(step), step, keep=2)
    assert steps_of(tmp_path) == (3, 4)


def test_two_runs_do_not_mix_in_one_folder(folder: Path, tmp_path: Path) -> None:
    empty_folder(tmp_path)
    with pytest.raises(InvalidFile, match=r"holds 1 checkpoints, the newest of step 1; resume from it \(--resume\)"):
        empty_folder(folder)


def test_two_runs_at_once_do_not_save_into_one_folder(tmp_path: Path) -> None:
    handle = lock(tmp_path)
    with pytest.raises(InvalidFile, match="another run is saving into"):
        lock(tmp_path, timeout_s=0.2)
    with pytest.raises(InvalidFile, match="another run is saving into"):
        check_free(tmp_path, timeout_s=0.2)
    os.close(handle)
    check_free(tmp_path, timeout_s=0.2)
    check_free(tmp_path / "not made yet", timeout_s=0.2)
    os.close(lock(tmp_path, timeout_s=0.2))


class Sleeps:
    """Takes the place of time.sleep: counts, and lets the ``last`` one end the other run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, end: Callable[[], None]) -> None:
        self.count, self._last, self._end = 0, last, end
        monkeypatch.setattr(owner_module, "time", SimpleNamespace(sleep=self, monotonic=time.monotonic))

    def __call__(self, seconds: float) -> None:
        self.count += 1
        if self.count == self._last:
            self._end()


def test_workers_of_this_run_or_of_one_that_has_ended_are_waited_for_and_any_other_run_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Owner.here("one")
    others = {
        "lives here": (here, 0),
        "another host": (replace(here, system="another"), 0),
        "ended": (replace(here, started=here.started + 1), 3),
        "of this run": (replace(here, run="two"), 3),
    }
    for name, (owner, sleeps) in others.items():
        handle = lock(tmp_path, owner=owner)
        slept = Sleeps(monkeypatch, 3, partial(unlock, tmp_path, handle))
        if sleeps:
            check_free(tmp_path, run="two")
        else:
            with pytest.raises(
                InvalidFile, match=rf"another run is saving .* \(run one, started by process {os.getpid()} of host .*\); wait"
            ):
                check_free(tmp_path, run="two")
            unlock(tmp_path, handle)
        assert slept.count == sleeps, name
    assert list(tmp_path.iterdir()) == []


def test_who_is_waited_for_in_vain_is_told_with_the_reason(tmp_path: Path) -> None:
    handle = lock(tmp_path, owner=replace(Owner.here("one"), started=0))
    with pytest.raises(InvalidFile, match=r"which has ended; its workers did not within 0 s"):
        check_free(tmp_path, timeout_s=0.0)
    unlock(tmp_path, handle)


@pytest.mark.parametrize("change", [{}, {"started": 0}, {"system": "of an earlier boot", "host": "elsewhere"}])
def test_a_folder_whose_run_was_killed_is_taken_over_with_a_word_on_it_and_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    owner = replace(Owner.here("one"), **change)
    os.close(lock(tmp_path, owner=owner))  # as the end of a process does, which takes nothing away
    slept = Sleeps(monkeypatch, 0, lambda: None)
    with pytest.warns(
        TakenOver, match=rf"was held by run one, started by process {os.getpid()} of host {owner.host}, .*; it is taken over"
    ):
        check_free(tmp_path, run="two")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_free(tmp_path, run="one")
        forget(tmp_path, replace(owner, run="two"))
        assert saving_run(tmp_path) == "" and list(tmp_path.iterdir())
        forget(tmp_path, owner)
        check_free(tmp_path, run="two")
    assert slept.count == 0 and not list(tmp_path.iterdir())


def test_two_launchers_that_look_at_a_folder_do_not_refuse_each_other(tmp_path: Path) -> None:
    looking = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    check_free(tmp_path, timeout_s=0.0)
    assert saving_run(tmp_path) == ""
    os.close(looking)


def test_a_folder_in_use_is_refused_before_the_values_of_a_run_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused by a worker, after all had started; and with resume the other run's newest checkpoint was read first."""
    monkeypatch.setattr(starting, "check_free", partial(check_free, timeout_s=0.2))
    handle = lock(tmp_path)
    for resume in (False, True):
        with pytest.raises(InvalidFile, match=f"another run is saving into {tmp_path}; wait for its end"):
            starting.beginning(plan_for("data2"), None, checkpoint=tmp_path, resume=resume)  # type: ignore[arg-type]  # not looked at
    os.close(handle)


def test_a_rank_that_does_not_write_fails_the_save_within_the_timeout_and_is_named(tmp_path: Path) -> None:
    plan = with_saving(plan_for("data2"))
    parts = initial_states(plan, 0, drawn_state(1))
    saver = Saver(plan, 0, SaveRequest(folder=str(tmp_path)), Store(), run_id="t", timeout_s=0.5)
    with pytest.raises(WorkerFailed, match=r"checkpoint of step 1 failed: rank 1 has written nothing more for 0\.5 s"):
        saver.end(1, lambda regst, index: parts[regst, index])
    assert latest(tmp_path) is None


def test_a_restarted_worker_begins_where_the_newest_checkpoint_ends(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks by the word of rank 0; the first attempt begins with what the parent handed over."""
    hand_over(tmp_path, drawn_state(5), set(drawn_state(5)))
    options, store = Options(run_id="r", steps=9, checkpoint=str(folder)), Store()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    same, values = begin(tmp_path, options, store, 0)  # type: ignore[arg-type]
    assert same == options and torch.equal(values.part("ln_f.weight", ((0, 32),)), drawn_state(5)["ln_f.weight"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for rank in (0, 1):
        then, values = begin(tmp_path, options, store, rank)  # type: ignore[arg-type]
        assert (then.first_step, then.steps) == (1, 8)
        assert torch.equal(values.part("ln_f.weight", ((0, 32),)), drawn_state(1)["ln_f.weight"])
    again, _ = begin(tmp_path, replace(options, checkpoint=str(tmp_path / "empty")), Store(), 0)  # type: ignore[arg-type]
    assert (again.first_step, again.steps) == (0, 9)


@pytest.mark.parametrize("after", [0, 5, 60])
def test_a_full_disk_is_told_with_its_numbers_and_the_last_good_one_stays(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "data2", drawn_state(1), 1)
    monkeypatch.setattr(folder_module._Counted, "write", full_disk(after))
    with pytest.raises(
        RegistaError, match=r"checkpoint of step 2 failed.*cannot write .*, [0-9]+ bytes.*No space left on device; [0-9]+ bytes are free"
    ):
        save(tmp_path, "data2", drawn_state(2), 2)
    monkeypatch.undo()
    assert latest(tmp_path) == tmp_path / "step-00000001" and verify(tmp_path / "step-00000001").step == 1


@pytest.mark.thorough
def test_a_file_beyond_the_kernels_limit_is_told_with_its_numbers(tmp_path: Path) -> None:
    code = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from backend.checkpoint.folder import write_part\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"write_part(Path({str(tmp_path)!r}) / 'x.pt', {{'w': torch.zeros(100_000)}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120)
    assert done.returncode == 1
    assert "InvalidFile: cannot write" in done.stderr and "File too large" in done.stderr and "bytes are free there" in done.stderr


def test_size_and_checksum_are_those_of_the_file(tmp_path: Path) -> None:
    import zlib

    written = write_part(tmp_path / "x.pt", {"w": torch.arange(1000.0)})
    data = (tmp_path / "x.pt").read_bytes()
    assert (written.name, written.size_bytes, written.crc32) == ("x.pt", len(data), zlib.crc32(data))
