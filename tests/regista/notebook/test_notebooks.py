"""The notebooks of examples/ run from the first cell to the last, and show what is committed with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from examples.notebooks import HERE, NAMES, executed

MEASURED = frozenset({"predict_and_run"})
"""What these show are times of this machine."""


def of_code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def forms(cell: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of each output of a cell, in which forms it is there."""
    return [tuple(sorted(output.get("data", {output["output_type"]: ""}))) for output in cell["outputs"]]


def texts(cell: dict[str, Any]) -> list[str]:
    return ["".join(output.get("data", {}).get("text/html", output.get("text", ""))) for output in cell["outputs"]]


def test_every_notebook_is_committed_with_its_outputs() -> None:
    assert {file.stem for file in HERE.glob("*.ipynb")} == set(NAMES)
    for name in NAMES:
        notebook = json.loads((HERE / f"{name}.ipynb").read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        cells = of_code(notebook)
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        assert all(cell["outputs"] for cell in cells[:1]) and sum(bool(cell["outputs"]) for cell in cells) >= 3


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_its_first_cell_to_its_last_and_shows_what_is_committed(name: str) -> None:
    committed = json.loads((HERE / f"{name}.ipynb").read_text())
    for old, new in zip(of_code(committed), of_code(executed(committed)), strict=True):
        assert forms(new) == forms(old)
        if name not in MEASURED:
            assert texts(new) == texts(old)
