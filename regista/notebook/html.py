"""From the parts of a screen to HTML: the same tables and sentences, in the notebook's own colours, light or dark.

Every text is escaped.  Long tables end with a count, as on a screen; facts (tables without a head) stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

__all__ = ["MOST_ROWS", "parts_html"]

MOST_ROWS = 16

# Colours are the notebook's: lines and small print are its own text colour, thinned.
_STYLE = Markup(
    "<style>.regista{color:inherit;background:transparent;font-size:13px;line-height:1.4;max-width:60em}"
    ".regista table{border-collapse:collapse;margin:.4em 0 .8em;color:inherit;background:transparent}"
    ".regista caption{caption-side:top;text-align:left;font-weight:600;color:inherit;padding:0 0 .3em}"
    ".regista th,.regista td{text-align:left;vertical-align:top;padding:.15em .9em .15em 0;background:transparent;white-space:pre-wrap}"
    ".regista thead th{border-bottom:1px solid;font-weight:600}"
    ".regista tbody th{font-weight:400;opacity:.75;white-space:nowrap}"
    ".regista .number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".regista p{margin:.3em 0;white-space:pre-wrap}.regista .note{opacity:.75}</style>"
)


def parts_html(parts: Sequence[RenderableType]) -> str:
    """A piece of HTML that needs no other file and no script."""
    body = Markup("").join(piece for part in parts for piece in _pieces(part))
    return str(Markup('<div class="regista">{}{}</div>').format(_STYLE, body))


def _pieces(part: RenderableType) -> Iterator[Markup]:
    match part:
        case Group():
            for inner in part.renderables:
                yield from _pieces(inner)
        case Table():
            yield _table(part)
        case Text():
            yield Markup("<p>{}</p>").format(part.plain)
        case str():
            yield Markup("<p>{}</p>").format(part)
        case _:
            raise TypeError(f"a {type(part).__name__} is no part of a screen")


def _table(table: Table) -> Markup:
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    shown = rows[:MOST_ROWS] if table.show_header else rows
    html = Markup("<table>")
    if title := _plain(table.title or ""):
        html += Markup("<caption>{}</caption>").format(title)
    if table.show_header:
        heads = Markup("").join(_cell("th", column, column.header) for column in table.columns)
        html += Markup("<thead><tr>{}</tr></thead>").format(heads)
    lines = (Markup("").join(_of_row(table, row)) for row in shown)
    html += Markup("<tbody>{}</tbody></table>").format(Markup("").join(Markup("<tr>{}</tr>").format(line) for line in lines))
    if len(rows) > len(shown):
        html += Markup('<p class="note">... and {} more</p>').format(f"{len(rows) - len(shown):,}")
    if caption := _plain(table.caption or ""):
        html += Markup('<p class="note">{}</p>').format(caption)
    return html


def _of_row(table: Table, row: Sequence[RenderableType]) -> Iterator[Markup]:
    for place, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
        yield _cell("th" if place == 0 and not table.show_header else "td", column, cell)


def _cell(tag: str, column: Column, content: RenderableType) -> Markup:
    justified = Markup(' class="number"') if column.justify == "right" else Markup("")
    return Markup("<{}{}>{}</{}>").format(Markup(tag), justified, _plain(content), Markup(tag))


def _plain(content: RenderableType) -> str:
    """A cell's text without the marks of a terminal."""
    if isinstance(content, Text):
        return content.plain
    return Text.from_markup(str(content)).plain
