"""Limits of the house's shape.  `python -m tests.structure` prints the figures behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.measure import PRODUCT, TOPS, files_of, pairs, shape
from tests.structure.twice import REASONS, reason_for
from tests.structure.words import count_words

ROOT = Path(__file__).resolve().parents[2]
LINES_OF_A_SLOPE = r"(?i:slopes?)"
"""Of a fitted line, in backend.measure.microbench; the word no longer stands for gradients."""


def test_no_folder_holds_more_than_twelve_files() -> None:
    assert shape(ROOT, TOPS).crowded == {}


def test_files_of_the_product_are_short() -> None:
    about = shape(ROOT, PRODUCT)
    assert about.long == {}
    assert about.median_lines <= 120


def test_coined_words_stay_away() -> None:
    counts = count_words(ROOT, files_of(ROOT, PRODUCT))
    assert {pattern for pattern, count in counts.items() if count} <= {LINES_OF_A_SLOPE}


@pytest.mark.thorough
def test_lines_that_stand_twice_in_the_product_have_a_reason() -> None:
    shared = pairs(ROOT, PRODUCT)
    unexplained = {pair: lines for pair, lines in shared.items() if reason_for(pair) is None}
    assert not unexplained, "say it once, or give the reason in tests/structure/twice.py"
    assert set(REASONS.values()) == {reason_for(pair) for pair in shared}, "a reason in tests/structure/twice.py is of lines that are gone"


def test_a_file_that_repeats_another_is_counted(tmp_path: Path) -> None:
    text = "\n".join(f"value_{n} = compute_something_long(argument_{n}, other_argument_{n}, more_{n}, last_{n})" for n in range(8)) + "\n"
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "a.py").write_text(text)
    (tmp_path / "planner" / "b.py").write_text(text)
    (tmp_path / "planner" / "c.py").write_text(text.replace("value", "number").replace("argument", "operand"))
    assert pairs(tmp_path, ("planner",)) == {("planner/a.py", "planner/b.py"): 8}
    assert set(pairs(tmp_path, ("planner",), alike=True)) >= {("planner/a.py", "planner/c.py"), ("planner/b.py", "planner/c.py")}
