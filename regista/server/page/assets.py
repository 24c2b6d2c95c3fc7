"""The files of the page by their paths, read once."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PAGE"]

_FOLDER = Path(__file__).parent / "templates"


def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


PAGE = {
    "/": (_read("page.html"), "text/html; charset=utf-8"),
    "/page.css": (_read("page.css"), "text/css; charset=utf-8"),
    "/page.js": (_read("page.js"), "text/javascript; charset=utf-8"),
}
"""path -> content, type."""
