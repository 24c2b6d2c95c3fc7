"""The folder of a run's checkpoints, and how a file gets there whole or not at all.

DIR/step-00000100/            a checkpoint: it got its name by one rename, when everything in it was on the disk
DIR/.step-00000200.RUN.tmp/   a save under way, or what a killed one left; the next run removes it
DIR/.step-00000000.RUN.old/   a checkpoint that is being removed
DIR/.saving.json              who holds the folder's lock (backend.checkpoint.owner)
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.checkpoint.manifest import MANIFEST, Manifest, SavedFile, manifest_text
from planner.ir.errors import InvalidFile

__all__ = ["PreparedFile", "commit", "latest", "make_folder", "remove_leftovers", "step_folder", "steps_of", "write_part", "write_whole"]

_SYNC_BYTES = 1 << 28
_PIECE_BYTES = 1 << 20
"""Of a write, between two calls of who watches it."""

_STEP = re.compile(r"step-([0-9]{8,})")
_HIDDEN = re.compile(r"\.step-[0-9]{8,}\.[^/]*\.(tmp|old)")


def step_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def steps_of(folder: Path) -> tuple[int, ...]:
    """Steps of the checkpoints in ``folder``, ascending; none when it does not exist."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(int(named[1]) for path in folder.iterdir() if (named := _STEP.fullmatch(path.name)) and path.is_dir()))


def latest(folder: str | Path) -> Path | None:
    """The newest checkpoint; None when there is none."""
    steps = steps_of(Path(folder))
    return step_folder(Path(folder), steps[-1]) if steps else None


class _Counted:
    """A file that counts its bytes and their checksum.  It keeps the first OSError to itself: torch's writer would turn it into another.

    Args:
        on_write: called with the bytes written so far.   durable: the bytes are on the disk when it is closed; without, nobody reads the
            checksum either, which is 0.
    """

    def __init__(self, path: Path, on_write: Callable[[int], None] | None, durable: bool = True) -> None:
        self._file = path.open("wb")
        self._on_write, self._synced, self._durable = on_write, 0, durable
        self.size_bytes = self.crc32 = 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        for first in range(0, len(view), _PIECE_BYTES):
            self._write_piece(view[first : first + _PIECE_BYTES])
        return len(view)

    def _write_piece(self, view: memoryview) -> None:
        if self.error is None:
            try:
                self._file.write(view)
                if self._durable and self.size_bytes - self._synced >= _SYNC_BYTES:
                    # So that the wait at the end is short, however large the file is.
                    self._file.flush()
                    os.fdatasync(self._file.fileno())
                    self._synced = self.size_bytes
            except OSError as error:
                self.error = error
        if self._durable:
            self.crc32 = zlib.crc32(view, self.crc32)
        self.size_bytes += len(view)
        if self._on_write is not None:
            self._on_write(self.size_bytes)

    def flush(self) -> None:
        """Do nothing: ``close`` flushes once."""

    def close(self) -> None:
        """Wait until all bytes are on the disk (where they must be).  Raises the first OSError of all."""
        try:
            if self.error is None:
                self._file.flush()
                if self._durable:
                    os.fsync(self._file.fileno())
        except OSError as error:
            self.error = error
        finally:
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or error
        if self.error is not None:
            raise self.error


def write_whole(
    path: Path, write: Callable[[_Counted], object], on_write: Callable[[int], None] | None = None, *, durable: bool = True
) -> SavedFile:
    """Write a file and, if it shall be ``durable``, wait until it is on the disk; otherwise its checksum is left out.

    Raises:
        InvalidFile: the disk is full, a limit is met, or the folder is gone; with the numbers.
    """
    size_bytes = 0
    try:
        file = _Counted(path, on_write, durable)
        try:
            write(file)
        finally:
            size_bytes = file.size_bytes
            file.close()
        return SavedFile(name=path.name, size_bytes=file.size_bytes, crc32=file.crc32)
    except OSError as error:
        try:
            room = f"{shutil.disk_usage(path.parent).free} bytes are free there"
        except OSError:
            room = "its folder cannot be read"
        raise InvalidFile(
            f"cannot write {path}, {size_bytes} bytes or more: {error.strerror or error}; {room}; make room, or give another folder"
        ) from error


class PreparedFile:
    """torch.save's file of tensors that keep their memory, to be written several times: the bytes around theirs do not depend on their values.

    Made anew for each save of 263 tensors they took 4 ms of a core, most of it under the GIL [measured: torch 2.13, 2026-11].

    Args:
        tensors: contiguous, on the CPU, each with a storage of its own.
        contents: what is written in their place, of the same shapes and dtypes, contiguous and on the CPU; the memory of ``tensors`` is then
            neither read nor, where it is large, ever there.  None: they themselves.
    """

    def __init__(self, tensors: Mapping[str, Tensor], contents: Mapping[str, Tensor] | None = None) -> None:
        written = tensors if contents is None else contents
        self._tensors = tensors  # their addresses stand for them
        self._contents = {tensor.data_ptr(): _content(written[name]) for name, tensor in tensors.items() if tensor.nbytes}
        self._lengths = {len(content) for content in self._contents.values()}
        self._pieces: list[bytearray | memoryview] = []
        checksums = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)  # they would depend on values, and the manifest has one of the whole file
        try:
            torch.save(dict(tensors), self)  # type: ignore[arg-type]  # what it uses of a file
        finally:
            torch.serialization.set_crc32_options(checksums)
        assert sum(isinstance(piece, memoryview) for piece in self._pieces) == len(self._contents)

    def write(self, data: memoryview) -> int:
        """Called by torch.save: a tensor's bytes come as its own memory."""
        content = self._contents.get(_address(data)) if len(data) in self._lengths else None
        if content is not None and len(content) == len(data):
            self._pieces.append(content)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))
        return len(data)

    def flush(self) -> None:
        """Called by torch.save."""

    def write_to(self, file: _Counted) -> None:
        """The file with the values of now."""
        for piece in self._pieces:
            file.write(memoryview(piece))


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _content(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an ndarray is a buffer


def write_part(
    path: Path, tensors: Mapping[str, Tensor] | PreparedFile, on_write: Callable[[int], None] | None = None, *, durable: bool = True
) -> SavedFile:
    """Write one rank's file.  Raises as write_whole does."""
    if isinstance(tensors, PreparedFile):
        return write_whole(path, tensors.write_to, on_write, durable=durable)
    return write_whole(path, lambda file: torch.save(dict(tensors), file), on_write, durable=durable)  # type: ignore[arg-type]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def commit(folder: Path, written: Path, manifest: Manifest, keep: int) -> Path:
    """Make what all ranks have written into ``written`` the checkpoint of its step, and remove all but the ``keep`` newest (0: none).

    Raises:
        InvalidFile: as write_whole; or the folder has a checkpoint of this step.
    """
    write_whole(written / MANIFEST, lambda file: file.write(manifest_text(manifest).encode()))
    target = step_folder(folder, manifest.step)
    try:
        _sync_folder(written)
        os.rename(written, target)
        _sync_folder(folder)
    except OSError as error:
        raise InvalidFile(f"cannot name {written} {target.name}: {error.strerror}; look for a checkpoint of another run there") from error
    for step in steps_of(folder)[: -keep or None] if keep else ():
        _remove(step_folder(folder, step))
    return target


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint.  It is renamed first, so that a kill in the midst leaves no half of it under its name."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.old")
    os.rename(checkpoint, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Raises InvalidFile: it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"cannot make {folder}: {error.strerror}; give a folder that takes files") from error


def remove_leftovers(folder: Path) -> tuple[str, ...]:
    """Remove what killed saves left; returns their names.  Nobody else may be saving here."""
    leftovers = tuple(sorted(path.name for path in folder.iterdir() if _HIDDEN.fullmatch(path.name))) if folder.is_dir() else ()
    for name in leftovers:
        shutil.rmtree(folder / name, ignore_errors=True)
    return leftovers
