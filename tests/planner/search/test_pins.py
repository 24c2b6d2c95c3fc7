"""Pins: what they fix, where it means anything."""

from __future__ import annotations

import pytest

import regista
from planner.ir.sbp import NdSbp


@pytest.mark.parametrize(
    ("cluster", "mesh", "pin", "layout"),
    [("local:1", None, "S(0)", "B"), ("local:2", (2, 1), "S(0),S(0)", "S(0),B"), ("local:2", (1, 2), "S(0),S(0)", "B,S(0)")],
)
def test_on_an_axis_of_one_device_a_part_is_the_whole(cluster: str, mesh: tuple[int, ...] | None, pin: str, layout: str) -> None:
    """Symptom: KeyError.  A pin written for any number of devices holds on one, too."""
    plan = regista.plan("zoo:mlp", cluster, mesh=mesh, pins=[f"head.weight={pin}"])
    (state,) = [entry for entry in plan.states if entry.name == "head.weight"]
    assert plan.regst[state.regst].tensors[state.index].sbp == NdSbp.parse(layout)
