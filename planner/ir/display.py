"""How values show themselves in a notebook: they know the call (``_repr_html_``), whoever stands above them knows the page.

A value of this floor cannot import what lays its facts out; the front door hands that in (``display_with``), as it hands in prices.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Displayed", "display_with"]

_WAYS: list[Callable[[object], str]] = []


def display_with(way: Callable[[object], str]) -> None:
    """From now on every Displayed value is shown as ``way`` of it says, in HTML."""
    _WAYS[:] = [way]


class Displayed:
    """A value that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML, as IPython asks for it; None, where nobody has said how: the notebook then shows text."""
        return _WAYS[0](self) if _WAYS else None
