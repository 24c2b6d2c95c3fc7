"""Output paths, refused before the work instead of after it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from planner.ir.errors import InvalidFile
from planner.ir.text import check_target

__all__ = ["check_targets"]


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
