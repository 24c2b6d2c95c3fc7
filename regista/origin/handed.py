"""Files that came with a request and were checked, by the names under which its arguments and Plans know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["handed", "handed_file"]

_NONE: Mapping[str, str] = {}
_FILES: ContextVar[Mapping[str, str]] = ContextVar("regista-handed-files", default=_NONE)


@contextmanager
def handed(files: Mapping[str, str]) -> Iterator[None]:
    """Within the block models of these names are read from these paths, and Plans may name them."""
    token = _FILES.set(files)
    try:
        yield
    finally:
        _FILES.reset(token)


def handed_file(name: str) -> str | None:
    """The path of what was handed over as ``name``; None: nothing was."""
    return _FILES.get().get(name)
