"""Damaged checkpoints are refused by file, size and checksum."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.checkpoint import Saved, find, latest, resume_point, verify
from backend.initial.values import whole_box
from planner.ir.errors import InvalidFile


def test_a_whole_checkpoint_is_verified(copied: Path) -> None:
    assert verify(copied).step == 1


def test_a_missing_file_is_refused_by_name(copied: Path) -> None:
    (copied / "rank0002.pt").unlink()
    for look in (verify, _read_all):
        with pytest.raises(InvalidFile, match=r"rank0002\.pt is missing \([0-9]+ bytes were written\)"):
            look(copied)


def test_a_truncated_file_is_refused_with_both_sizes(copied: Path) -> None:
    path = copied / "rank0001.pt"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    for look in (verify, _read_all):
        with pytest.raises(InvalidFile, match=rf"rank0001\.pt has {len(data) - 100} bytes, {len(data)} were written"):
            look(copied)


def test_an_altered_byte_is_refused_before_a_run_starts(copied: Path) -> None:
    path = copied / "rank0003.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InvalidFile, match=r"rank0003\.pt has checksum [0-9a-f]{8}, [0-9a-f]{8} was written.*\(remove .*step-00000001"):
        resume_point(copied.parent)


def test_a_missing_or_foreign_manifest_is_refused(copied: Path) -> None:
    (copied / "manifest.json").write_text('{"kind": "plan"}')
    with pytest.raises(InvalidFile, match="expected a regista checkpoint file"):
        verify(copied)
    (copied / "manifest.json").unlink()
    with pytest.raises(InvalidFile, match=r"is no checkpoint: it has no manifest\.json"):
        verify(copied)


def _read_all(path: Path) -> None:
    saved = Saved(str(path))
    for state in saved.manifest.states:
        saved.part(state.name, whole_box(state.shape))


def test_a_folder_without_checkpoints_says_what_to_give(tmp_path: Path) -> None:
    assert latest(tmp_path / "none") is None and resume_point(tmp_path / "none") is None
    with pytest.raises(InvalidFile, match="does not exist; give the folder of 'regista run --checkpoint'"):
        find(tmp_path / "none")
