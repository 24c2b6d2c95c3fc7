"""Limits of the house's shape.  `python -m tests.structure` prints the figures behind them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.structure.measure import PRODUCT, TOPS, files_of, pairs, shape
from tests.structure.trusted_base import lines_by_room
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


def test_what_a_validation_trusts_is_the_vocabulary_the_rules_and_itself() -> None:
    assert set(lines_by_room(ROOT)) == {"planner/ir", "planner/opset", "planner/validate"}


@pytest.mark.parametrize("room", ["planner/ir", "planner/opset", "planner/validate"])
def test_the_trusted_base_is_as_long_as_the_architecture_says(room: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (stated,) = re.findall(rf"^\| [^|]* \| `{room}` \| ([0-9,]+) \|$", text, re.MULTILINE)
    assert abs(lines_by_room(ROOT)[room] / int(stated.replace(",", "")) - 1) < 0.1
