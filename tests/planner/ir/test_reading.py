"""What a JSON file of ours may hold: finite numbers within 64 bits, nested no deeper than the limit, text that can be written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile
from planner.ir.reading.parsing import MAX_DEPTH
from planner.ir.text import load_json

FRAME = '{{"kind": "plan", "version": 1, "field": {}}}'


def load(tmp_path: Path, field: str) -> object:
    path = tmp_path / "file.json"
    path.write_text(FRAME.format(field))
    return load_json(str(path), "plan", 1)["field"]


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0])
def test_whole_numbers_of_64_bits_are_read(tmp_path: Path, number: int) -> None:
    assert load(tmp_path, str(number)) == number


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", "1" * 25, "1" * 5000])
def test_whole_numbers_beyond_64_bits_are_refused(tmp_path: Path, number: str) -> None:
    with pytest.raises(InvalidFile, match="does not fit into 64 bits"):
        load(tmp_path, number)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidFile, match=f"{name} is not JSON; regista's files have finite numbers"):
        load(tmp_path, name)


def test_a_number_too_large_for_a_float_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="is too large for a float"):
        load(tmp_path, "1e999")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="nested deeper than"):
        load(tmp_path, "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
