"""From values to pages: Jinja2 fills this folder's templates.

A page gets tables, charts and texts; what stands where, and all sentences, are in templates/*.html.
"""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from regista.report.pictures import data_uri
from regista.views.html import Cell, Table, environment
from regista.views.timeline import TEMPLATES as LEGEND

__all__ = ["Table", "bad", "bytes_cell", "error_cell", "render", "share_cell", "source"]

_TEMPLATES = environment(Path(__file__).parent / "templates", LEGEND)
_TEMPLATES.filters["data_uri"] = data_uri


def render(template: str, **values: object) -> Markup:
    """The template of that name with these values."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def source(template: str) -> str:
    """The text of a template, for a library that fills it itself."""
    return (Path(__file__).parent / "templates" / template).read_text(encoding="utf-8")


def bad(text: str) -> Markup:
    """A text that is marked as bad."""
    return Markup('<span class="bad">{}</span>').format(text)


def error_cell(error: float | None, limit: float = 0.1) -> Cell:
    """A relative error; ``limit`` and more is marked, and '-' stands where nothing was measured."""
    if error is None:
        return "-"
    return bad(f"{error:+.1%}") if abs(error) >= limit else f"{error:+.1%}"


def bytes_cell(predicted: float, counted: float) -> Cell:
    """Predicted less counted bytes: '0 B' where they agree, else marked, as a relative error, or in bytes where that rounds to 0."""
    difference = predicted - counted
    if not difference:
        return "0 B"
    share = difference / counted if counted else 1.0
    return bad(f"{share:+.1%}" if abs(share) >= 0.0005 and counted else f"{difference:+,.0f} B")


def share_cell(difference: float) -> str:
    """A difference of two shares, in points."""
    return f"{100 * difference:+.1f} points"
