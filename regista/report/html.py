"""From values to pages: Jinja2 fills this folder's templates, and escapes every text that is not markup already.

A page gets tables, charts and texts; what stands where, and all sentences, are in templates/*.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from regista.report.pictures import data_uri

__all__ = ["Table", "bad", "bytes_cell", "error_cell", "render", "share_cell", "source"]

Cell = str | Markup

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_TEMPLATES.filters["data_uri"] = data_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """words: numbers of the columns that hold sentences and may break."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = ()


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
