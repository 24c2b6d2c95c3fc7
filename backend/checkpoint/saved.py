"""A checkpoint as values: any box of any state, assembled from the saved boxes that overlap it; files are mapped, not read whole."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from backend.checkpoint.folder import latest, steps_of
from backend.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from backend.initial.values import Box, check_box, known_type, numel_of, overlap
from backend.layout.views import box_view
from planner.ir.errors import InvalidFile
from planner.ir.tensor import TensorType

__all__ = ["Saved", "find", "verify"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Saved:
    """The checkpoint in ``folder`` (a step-NUMBER).  Files stay mapped as long as this value lives.

    Raises (when it is first asked):
        InvalidFile: a file is missing, truncated or of another form; named, with the numbers.
    """

    folder: str

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(Path(self.folder))

    @cached_property
    def _mapped(self) -> dict[str, Mapping[str, Tensor]]:
        """File name -> its mapped tensors; a file is mapped when it is first asked for."""
        return {}

    def take(self, file: str, tensors: Mapping[str, Tensor]) -> None:
        """Read these tensors, by the names of states, where the manifest names this file, which is not there."""
        self._mapped[file] = tensors

    def map_all(self) -> None:
        """Map every file now, so that the values can be read when the folder is gone.  Raises InvalidFile as any reading does."""
        for file in self.manifest.file:
            self._map_file(Path(self.folder) / file)

    def type_of(self, name: str) -> TensorType | None:
        state = self.manifest.state.get(name)
        return None if state is None else TensorType(state.shape, state.dtype)

    def part(self, name: str, box: Box) -> Tensor:
        type_ = known_type(self, name)
        check_box(name, box, type_.shape)
        state = self.manifest.state[name]
        result = torch.empty([length for _, length in box], dtype=getattr(torch, type_.dtype.value))
        covered = 0
        for piece in state.pieces:
            shared = overlap(box, piece.box)
            if shared is None:
                continue
            piece_values = self._piece(piece.file, name, piece.box, result.dtype)
            inner = tuple((offset - base, length) for (offset, length), (base, _) in zip(shared, piece.box, strict=True))
            target = tuple((offset - base, length) for (offset, length), (base, _) in zip(shared, box, strict=True))
            box_view(result, target).copy_(box_view(piece_values, inner))
            covered += numel_of(shared)
        if covered != result.numel():
            raise InvalidFile(
                f"{self.folder}: its pieces hold {covered} of the {result.numel()} elements of {name} at {box}; it is damaged"
            )
        return result

    def _piece(self, file: str, name: str, box: Box, dtype: torch.dtype) -> Tensor:
        path = Path(self.folder) / file
        value = self._map_file(path).get(name)
        if value is None or tuple(value.shape) != tuple(length for _, length in box) or value.dtype != dtype:
            shown = "nothing" if value is None else f"{tuple(value.shape)} {value.dtype}"
            raise InvalidFile(
                f"{path} ({self.manifest.file[file].size_bytes} bytes) holds {shown} for {name}, its manifest says {box} of {dtype}; it was altered"
            )
        return value

    def _map_file(self, path: Path) -> Mapping[str, Tensor]:
        """The tensors of a file, mapped.  A mapped file that was removed is whole; one that is there must have kept its size."""
        if path.exists() or path.name not in self._mapped:
            check_size(path, self.manifest)
        if path.name not in self._mapped:
            self._mapped[path.name] = _map(path)
        return self._mapped[path.name]


def check_size(path: Path, manifest: Manifest) -> int:
    """Bytes of a checkpoint's file.

    Raises:
        InvalidFile: it is missing, or shorter or longer than it was written.
    """
    listed = manifest.file.get(path.name)
    if listed is None:
        raise InvalidFile(f"{path} stands in no list of its manifest; the checkpoint is damaged, take an older one")
    if path.is_symlink():
        raise InvalidFile(
            f"{path} is a link; what a run saves are files, so it was altered: copy the file itself, or take an older checkpoint"
        )
    if not path.is_file():
        raise InvalidFile(f"{path} is missing ({listed.size_bytes} bytes were written); copy the whole folder, or take an older checkpoint")
    size_bytes = path.stat().st_size
    if size_bytes != listed.size_bytes:
        raise InvalidFile(f"{path} has {size_bytes} bytes, {listed.size_bytes} were written; copy it again, or take an older checkpoint")
    return size_bytes


def verify(folder: str | Path) -> Manifest:
    """Read every byte of a checkpoint once, without keeping any.

    Raises:
        InvalidFile: a file is missing, truncated or altered; named, with the numbers.
    """
    manifest = read_manifest(Path(folder))
    for file in manifest.files:
        path = Path(folder) / file.name
        check_size(path, manifest)
        crc32 = 0
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                crc32 = zlib.crc32(chunk, crc32)
        if crc32 != file.crc32:
            raise InvalidFile(f"{path} has checksum {crc32:08x}, {file.crc32:08x} was written; it was altered, take an older checkpoint")
    return manifest


def find(folder: str | Path) -> Path:
    """The folder of the checkpoint that a path names: the path itself, or the newest checkpoint in it.

    Raises:
        InvalidFile: there is none.
    """
    path = Path(folder)
    if (path / MANIFEST).is_file():
        return path
    newest = latest(path)
    if newest is None:
        what = f"has {len(steps_of(path))} checkpoints" if path.is_dir() else "does not exist"
        raise InvalidFile(f"{path} {what}; give the folder of 'regista run --checkpoint', or a step-NUMBER in it")
    return newest


def _map(path: Path) -> Mapping[str, Tensor]:
    try:
        content = torch.load(path, mmap=True, weights_only=True)
    except (RuntimeError, ValueError, UnpicklingError, EOFError) as error:
        text = str(error).strip().split("\n")[0]
        raise InvalidFile(f"{path} cannot be read ({type(error).__name__}: {text}); it was altered, take an older checkpoint") from error
    if not isinstance(content, dict):
        raise InvalidFile(f"{path} holds a {type(content).__name__}, not a mapping of tensors; it was altered, take an older checkpoint")
    return content
