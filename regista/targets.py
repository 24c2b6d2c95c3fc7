"""Output paths, refused before the work instead of after it; files of bytes, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.text import check_target

__all__ = ["check_targets", "save_bytes"]


def check_targets(outputs: Sequence[str | None], inputs: Sequence[str | None] = ()) -> None:
    """Refuse a bad output path before the work, not after it; None: not asked for.

    Raises:
        InvalidFile: it cannot be written (see planner.ir.text.check_target), or it would overwrite what is read or written beside it.
    """
    taken = {os.path.realpath(path): path for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in taken:
            raise InvalidFile(f"cannot write {path!r}: the same command reads or writes that file for something else; give another name")
        taken[real] = path
        check_target(path)


def save_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.   Raises InvalidFile: it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".regista-", delete=False) as file:
            file.write(content)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise InvalidFile(f"cannot write {str(path)!r}: {error.strerror}; give a path in an existing, writable folder") from error
