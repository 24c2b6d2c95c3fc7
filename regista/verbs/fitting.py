"""An answer is one screen: tables that are too long lose rows at their end, and a line says how many.

Every verb prints through ``regista.verbs.screen.show``, which fits its answer here; ``--full`` leaves everything whole, ``--json`` has
everything.  A table without a header is a list of facts on one thing and stays whole; a table with a header lists things that are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, zip_longest

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

__all__ = ["LINES", "fitted", "in_one_style"]

LINES = 40
"""Lines of a screen."""

_LEAST_ROWS, _EQUAL_ROWS = 2, 4
"""Fewer rows of a table say too little, where there is another table to show; so many have all tables before the first ones have more."""

_CELL_LINES = 2
"""A cell has at most as many characters as this many lines of the screen."""


def in_one_style(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """The parts one by one, groups opened, all tables in the same style with an empty line behind each."""
    flat = [_styled(part) if isinstance(part, Table) else part for part in _flat(parts)]
    return _spaced(flat)


def fitted(parts: Sequence[RenderableType], console: Console, lines: int = LINES) -> list[RenderableType]:
    """The parts on at most ``lines`` lines of the console.

    All rows if they fit; else up to four of each table, then more of the first ones.  Where even two rows of each are too many, the last
    tables are left out and named.  Facts and texts lose lines only where they alone are too long.
    """
    flat = list(_flat(parts))
    whole = tuple(part.row_count if isinstance(part, Table) else 0 for part in flat)
    shortened = [_styled(part, lines + 1, _CELL_LINES * console.width) if isinstance(part, Table) else part for part in flat]
    screen = _Screen(parts=shortened, whole=whole, console=console, lines=lines)
    if screen.fits(whole):
        return screen.shown(whole)
    places = [place for place, part in enumerate(flat) if isinstance(part, Table) and part.show_header]
    for kept in range(len(places), -1, -1):
        none = tuple(0 if place in places else rows for place, rows in enumerate(whole))
        cap = _most(_EQUAL_ROWS, _of_each(screen, none, whole, places[:kept]))
        if cap < (_LEAST_ROWS if kept > 1 else min(kept, 1)):
            continue
        rows = tuple(min(whole[place], cap) if place in places[:kept] else count for place, count in enumerate(none))
        for place in places[:kept]:
            most = _most(min(lines, whole[place]), _of_each(screen, rows, whole, [place]))
            rows = (*rows[:place], max(rows[place], most), *rows[place + 1 :])
        if screen.fits(rows):
            return screen.shown(rows)
    return _first_lines(screen.shown(tuple(0 if place in places else rows for place, rows in enumerate(whole))), console, lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Screen:
    """parts: tables, of no more rows than a screen has, and texts.   whole: rows that each table has.   ``rows`` below: rows to show of each."""

    parts: Sequence[RenderableType]
    whole: Sequence[int]
    console: Console
    lines: int

    def shown(self, rows: Sequence[int]) -> list[RenderableType]:
        """What is printed: shortened tables, each with a line on what is missing; tables without a row are named at the end."""
        printed: list[RenderableType] = []
        missing = []
        for part, count, whole in zip(self.parts, rows, self.whole, strict=True):
            if not isinstance(part, Table) or count == whole:
                printed.append(part)
            elif count:
                printed += [_styled(part, count), f"... and {whole - count:,} more, --full shows them"]
            else:
                missing.append(_title(part))
        if missing:
            printed.append(f"... and {len(missing)} more table{'s' if len(missing) > 1 else ''} ({'; '.join(missing)}), --full shows them")
        return _spaced(printed)

    def fits(self, rows: Sequence[int]) -> bool:
        return sum(rows) <= self.lines and _height(self.shown(rows), self.console, self.lines) <= self.lines


def _of_each(screen: _Screen, rows: Sequence[int], whole: Sequence[int], places: Sequence[int]) -> Callable[[int], bool]:
    """Whether the screen fits with so many rows of each table at ``places``, of the others as in ``rows``."""
    return lambda cap: screen.fits([min(whole[place], cap) if place in places else count for place, count in enumerate(rows)])


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that fits, by halving; 0: none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _flat(parts: Sequence[RenderableType]) -> Iterator[RenderableType]:
    for part in parts:
        if isinstance(part, Group):
            yield from _flat(part.renderables)
        else:
            yield part


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """The parts with an empty line where a table ends (behind the line on its missing rows) and where one begins after a text."""
    spaced: list[RenderableType] = []
    for part, following in zip_longest(parts, parts[1:]):
        spaced.append(part)
        is_note = isinstance(following, str) and following.startswith("... and ")
        if following is not None and not is_note and (isinstance(part, Table) or isinstance(following, Table)):
            spaced.append("")
    return spaced


def _height(parts: Sequence[RenderableType], console: Console, most: int) -> int:
    """Lines that the parts take; above ``most`` any larger number."""
    total = 0
    for part in parts:
        if isinstance(part, str):
            total += sum(max(1, -(-cell_len(line) // console.width)) for line in part.split("\n"))
        else:
            total += len(console.render_lines(part, pad=False))
        if total > most:
            break
    return total


def _first_lines(parts: Sequence[RenderableType], console: Console, lines: int) -> list[RenderableType]:
    """The parts as text, cut behind so many lines."""
    with console.capture() as capture:
        for part in parts:
            console.print(part, markup=False, highlight=False)
    text = capture.get().rstrip("\n").split("\n")
    if len(text) <= lines:
        return list(parts)
    shown = lines - 2  # the note takes two lines of a narrow terminal
    return [Text.from_ansi("\n".join(text[:shown])), f"... and {len(text) - shown:,} more lines, --full shows them"]


def _styled(table: Table, rows: int | None = None, most: int | None = None) -> Table:
    """The same table in the one style: its first ``rows`` rows, cells of at most ``most`` characters; None: all of them."""
    styled = copy(table)
    styled.box, styled.show_edge, styled.pad_edge = (None if table.box is None else SIMPLE_HEAD), False, False
    styled.title_justify = styled.caption_justify = "left"
    styled.columns = [column.copy() for column in table.columns]
    styled.rows = []
    columns = [islice(column.cells, rows) for column in table.columns]
    for row, *cells in zip(table.rows, *columns, strict=False):
        styled.add_row(*(_short(cell, most) for cell in cells), style=row.style, end_section=row.end_section)
    return styled


def _short(cell: RenderableType, most: int | None) -> RenderableType:
    if most is None or not isinstance(cell, str) or len(cell) <= most or len(plain := Text.from_markup(cell).plain) <= most:
        return cell
    return escape(f"{plain[:most].rstrip()} ...")


def _title(table: Table) -> str:
    """What a table is about, without its details."""
    title = table.title.plain if isinstance(table.title, Text) else Text.from_markup(table.title or "").plain
    return title.split(":")[0] or "a table"
