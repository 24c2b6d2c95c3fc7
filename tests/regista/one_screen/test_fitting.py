"""An answer of any tables and texts is one screen: what is cut is counted, what is short stays whole."""

from __future__ import annotations

import io
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group, RenderableType
from rich.table import Table

from regista.verbs.fitting import LINES
from regista.verbs.screen import print_parts


def table_of(rows: int, title: str = "rows", *, header: bool = True, cell: str = "x") -> Table:
    table = Table("number", "what", title=title, show_header=header)
    for number in range(rows):
        table.add_row(f"{title}-{number}", cell)
    return table


def printed(*parts: RenderableType, columns: int = 80, full: bool = False) -> list[str]:
    console = Console(width=columns, file=io.StringIO(), record=True)
    print_parts(console, parts, full=full)
    return [line.rstrip() for line in console.export_text().rstrip("\n").split("\n")]


@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=6),
    texts=st.lists(st.text("abc \n", min_size=1, max_size=300), max_size=6),
    width=st.integers(1, 200),
    columns=st.sampled_from([40, 80, 160]),
)
def test_whatever_is_shown_takes_at_most_one_screen(rows: list[tuple[int, bool]], texts: list[str], width: int, columns: int) -> None:
    tables = [table_of(count, f"t{number}", header=header, cell="y " * width) for number, (count, header) in enumerate(rows)]
    lines = printed(*tables, *texts, columns=columns)
    assert sum(max(1, -(-len(line) // columns)) for line in lines) <= LINES


@settings(max_examples=12)
@given(rows=st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_rows_that_are_shown_and_rows_that_are_counted_are_all_rows(rows: list[int]) -> None:
    lines = printed(*(table_of(count, f"t{number}") for number, count in enumerate(rows)))
    shown = {number: sum(line.startswith(f"t{number}-") for line in lines) for number in range(len(rows))}
    counted = sum(int(found[1].replace(",", "")) for line in lines if (found := re.match(r"\.\.\. and ([\d,]+) more, --full", line)))
    missing_tables = [number for number in shown if any("more table" in line and f"t{number}" in line for line in lines)]
    assert sum(shown.values()) + counted + sum(rows[number] for number in missing_tables) == sum(rows)


def test_what_fits_is_shown_whole() -> None:
    lines = printed(table_of(10), "a text", table_of(10, "others"))
    assert sum(line.startswith(("rows-", "others-")) for line in lines) == 20
    assert not any("--full" in line for line in lines)


def test_the_first_table_has_most_of_the_screen_and_every_other_some_rows() -> None:
    lines = printed(table_of(100), table_of(100, "others"))
    first, second = (sum(line.startswith(f"{name}-") for line in lines) for name in ("rows", "others"))
    assert first > second == 4
    assert f"... and {100 - first} more, --full shows them" in lines


def test_facts_stay_whole_beside_a_long_table() -> None:
    lines = printed(table_of(100), table_of(12, "facts", header=False))
    assert sum(line.startswith("facts-") for line in lines) == 12


def test_full_shows_every_row() -> None:
    lines = printed(table_of(300), Group("text", table_of(50, "others")), full=True)
    assert sum(line.startswith(("rows-", "others-")) for line in lines) == 350


def test_a_long_cell_ends_with_an_ellipsis_and_keeps_its_brackets() -> None:
    table = Table("names")
    table.add_row("\\[a] " * 200)
    shown = " ".join(printed(table, table_of(60)))
    assert "[a] [a]" in shown and " ..." in shown
