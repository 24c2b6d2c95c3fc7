"""The committed Plans of the matrix are what the planner makes; with --update-plans they are written anew instead."""

from __future__ import annotations

import pytest
from matrix import COMMITTED, MODELS, read_plan, searched_plan, write_plans

from planner.ir.errors import InvalidFile


def cells_of(model: str) -> list[tuple[str, str]]:
    return [(way, dtype) for m, way, dtype in COMMITTED if m == model]


@pytest.mark.representatives("mlp")
@pytest.mark.parametrize("model", MODELS)
def test_committed_plans_are_what_the_planner_makes(model: str, request: pytest.FixtureRequest) -> None:
    made = {(way, dtype): searched_plan(model, way, dtype) for way, dtype in cells_of(model)}
    if request.config.getoption("--update-plans"):
        write_plans(model, made)
    stale = {cell for cell, plan in made.items() if read_plan(model, *cell).plan_id != plan.plan_id}
    assert not stale, f"{model}: the planner makes other plans than the committed ones; if that is meant: make plans"


def test_a_cell_without_a_committed_plan_names_the_command_that_writes_it() -> None:
    with pytest.raises(InvalidFile, match=r"no committed plan of mlp, data2, fp16 .*make plans"):
        read_plan("mlp", "data2", "fp16")
