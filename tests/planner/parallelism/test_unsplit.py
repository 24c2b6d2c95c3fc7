"""A ZeRO level that cannot split what it is about says so, with names and bytes; one that splits nothing is refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from matrix import roomy_cluster
from torch import nn

from planner.frontend import SGD, AdamW, Program
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.unsplit import ZeroUnmet


def _plan(*widths: int, devices: int = 2, optimizer: SGD | AdamW | None = None, stages: int = 1, zero: int = 1) -> Plan:
    layers = [nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)]
    program = Program(nn.Sequential(*layers), (torch.zeros(6, widths[0]),), lambda y: y.square().mean(), optimizer or AdamW())
    options = PlanOptions(zero=zero, pins=("input.0=S(0)",), stages=stages)
    return search_plans(program.graph, model="linear", batch_size=6, cluster=roomy_cluster(devices), options=options).plan


def test_a_level_that_splits_nothing_is_refused_with_names_and_bytes() -> None:
    """Two moments of 5 x 7 and of 7 numbers; 2 divides neither 5 nor 7."""
    with pytest.raises(Unsupported, match=r"ZeRO level 1 splits nothing on each of 2 devices, 336 B of 336 B: .* no dim of 0\.\w+:exp_avg"):
        _plan(5, 7)


def test_what_a_level_leaves_whole_is_told_with_names_and_bytes() -> None:
    with pytest.warns(ZeroUnmet, match=r"leaves 2 of 4 states whole on each of 2 devices, 56 B of 392 B: .* no dim of 0\.bias:exp_avg"):
        _plan(6, 7)


def test_a_level_that_splits_all_says_nothing() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _plan(6, 8)
    assert [w for w in warned if w.category is ZeroUnmet] == []


def test_an_optimizer_without_state_and_a_stage_of_one_device_have_nothing_to_split() -> None:
    with pytest.warns(ZeroUnmet, match="the optimizer keeps no state"):
        _plan(6, 8, optimizer=SGD())
    with pytest.warns(ZeroUnmet, match="each stage has one device"):
        _plan(6, 8, 6, stages=2)
