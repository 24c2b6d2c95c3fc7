"""What a checkpoint holds and where: ``manifest.json``, the last file that a save writes.

step-00000100/
    manifest.json      this
    rank0000.pt        torch.save of {name: the box of the logical tensor that this rank wrote}, readable by torch.load(weights_only=True)
    rank0001.pt
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from backend.initial.values import Box
from planner.ir.errors import InvalidFile
from planner.ir.graph import InputKind
from planner.ir.tensor import DType
from planner.ir.text import canonical, decode, encode, load_json

__all__ = ["MANIFEST", "VERSION", "Group", "Manifest", "SavedFile", "SavedPiece", "SavedState", "manifest_text", "read_manifest"]

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file of a checkpoint.   crc32: of all its bytes."""

    name: str
    size_bytes: int
    crc32: int

    def __post_init__(self) -> None:
        _check_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPiece:
    """The box (offset, length per dim) of the logical tensor that lies in ``file`` under the state's name."""

    file: str
    box: Box

    def __post_init__(self) -> None:
        _check_name(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """One state.  Its pieces are disjoint and make up the whole."""

    name: str
    kind: InputKind
    shape: tuple[int, ...]
    dtype: DType
    pieces: tuple[SavedPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters with one optimizer: the op's target and its numbers, as planner.frontend.optim orders them."""

    target: str
    numbers: tuple[float, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What stands in a checkpoint.

    step: steps done.  next_batch: the step number whose batch comes next; a run that goes on needs no more than these two numbers.
    """

    plan_id: str
    model: str
    step: int
    next_batch: int
    num_ranks: int
    states: tuple[SavedState, ...]
    groups: tuple[Group, ...]
    files: tuple[SavedFile, ...]

    @cached_property
    def state(self) -> dict[str, SavedState]:
        return {state.name: state for state in self.states}

    @cached_property
    def file(self) -> dict[str, SavedFile]:
        return {file.name: file for file in self.files}


def _check_name(name: str) -> None:
    """Raise InvalidFile where a manifest names a path instead of a file in the checkpoint's own folder."""
    if name != Path(name).name or name in ("", "..") or "\0" in name:
        raise InvalidFile(f"{name!r} is no name of a file in the checkpoint's folder; the manifest was altered, take an older checkpoint")


def manifest_text(manifest: Manifest) -> str:
    return canonical({"kind": "checkpoint", "version": VERSION, "manifest": encode(manifest)}) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Raises InvalidFile when there is none, or it is of another schema."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidFile(f"{folder} is no checkpoint: it has no {MANIFEST}; give a folder step-NUMBER that a run has saved")
    manifest = decode(Manifest, load_json(path, "checkpoint", VERSION).get("manifest"), "manifest")
    assert isinstance(manifest, Manifest)
    return manifest
