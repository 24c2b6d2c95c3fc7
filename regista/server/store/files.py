"""Files by the SHA-256 of their content: written whole or not at all, never changed, each of a kind that is plain data.

files/ab/ab12...   one file per content, mode 0600
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.units import GIB
from regista.server.store.exported import check_exported
from regista.server.store.kinds import check_kind

__all__ = ["FileStore", "Upload"]

_PIECE = 1 << 20
_FREE_BYTES = GIB
"""What uploads leave free on the disk, for what requests leave."""


class Upload:
    """A file that is on its way: pieces, then ``finish``; what is left unfinished leaves nothing."""

    def __init__(self, store: FileStore, digest: str) -> None:
        self._store, self._digest = store, digest
        self._hash, self._path = hashlib.sha256(), store.folder / f".upload-{uuid.uuid4().hex}"
        self._file = self._path.open("xb")
        self.size_bytes = 0

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        self.size_bytes += len(piece)

    def finish(self, check_archive: Callable[[Path], None] = check_exported) -> None:
        """Keep the file.

        Args:
            check_archive: refuses a .pt2 that could be more than data.

        Raises:
            InvalidFile: the bytes are not those that were announced, or of a kind that is not taken.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._hash.hexdigest() != self._digest:
            raise InvalidFile(
                f"the upload of {self._digest[:16]} ended after {self.size_bytes} bytes with another SHA-256 ({self._hash.hexdigest()[:16]}): it is "
                "half-written or damaged, and was not kept; send it again"
            )
        check_kind(self._path, check_archive)
        target = self._store.path(self._digest)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(self._path, target)

    def close(self) -> None:
        """Leave nothing of it, unless it was finished."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class FileStore:
    """The files of a folder.  Raises OSError where the disk does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(".upload-*"):
            left.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Where the file of this SHA-256 lies, or would lie.

        Raises:
            InvalidFile: no SHA-256.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise InvalidFile(f"{digest[:40]!r} is no SHA-256: 64 hexadecimal digits name a file of a server")
        return self.folder / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Whether it is here; who asks means to use it, so it is not swept for a while."""
        path = self.path(digest)
        if not path.is_file():
            return False
        os.utime(path)
        return True

    def check_room(self, size_bytes: int) -> None:
        """Refuse a file that the disk has no room for.

        Raises:
            InvalidFile: less than 1 GiB would stay free.
        """
        free = shutil.disk_usage(self.folder).free
        if free < size_bytes + _FREE_BYTES:
            raise InvalidFile(
                f"the upload may have {size_bytes} bytes, and the server's disk has {free} free, of which {_FREE_BYTES} stay so; make room there"
            )

    def begin(self, digest: str) -> Upload:
        """Take a file piece by piece.   Raises InvalidFile: see path."""
        self.path(digest)
        return Upload(self, digest)

    def take(self, source: Path) -> str:
        """Move a file that a verb has left into the store; returns its SHA-256."""
        digest = digest_of(source)
        target = self.path(digest)
        if not target.is_file():
            target.parent.mkdir(mode=0o700, exist_ok=True)
            os.chmod(source, 0o600)
            os.replace(source, target)
        os.utime(target)
        return digest

    def sweep(self, *, older_than_s: float) -> None:
        """Remove what no request holds a link to and nobody has sent since then."""
        for path in self.folder.glob("??/*"):
            about = path.stat()
            if about.st_nlink == 1 and about.st_mtime < older_than_s:
                path.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
