"""Keys that are known, and the nearest known one to a key that is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from planner.ir.errors import InvalidFile

__all__ = ["known_keys", "nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` or nothing.

    >>> nearest("micro_batch", ["stages", "micro_batches"])
    '; did you mean micro_batches?'
    """
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def known_keys(data: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Raises InvalidFile for a key that is not known, with the nearest one and all there are."""
    names = list(known)
    for key in data:
        if key not in names:
            raise InvalidFile(f"{where} has no key {key!r}{nearest(key, names)} (it has {', '.join(names)})")
