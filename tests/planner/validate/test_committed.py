"""Every committed Plan of the matrix is proven to compute its program."""

from __future__ import annotations

import pytest
from matrix import COMMITTED, MODELS, WAYS, program, read_plan

from planner.validate import validate


@pytest.mark.representatives("mlp")
@pytest.mark.parametrize("model", MODELS)
def test_committed_plans_compute_their_programs(model: str) -> None:
    for way, dtype in [(way, dtype) for m, way, dtype in COMMITTED if m == model]:
        report = validate(read_plan(model, way, dtype), program(model, dtype))
        assert report.micro_batches == WAYS[way].micro_batches
        assert report.states
        assert report.gradients
        assert not report.not_checked
