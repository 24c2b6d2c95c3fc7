"""regista.attention and its gradient are what torch defines attention as, in every format, and whatever form the operands have."""

from __future__ import annotations

import pytest
import torch

from planner.frontend.attention.ops import attention, attention_backward
from planner.frontend.attention.products import multiplied, multiplied_backward
from tests.oracles.attention_definition import CASES, FORMATS, Performed, assert_is_defined_so


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    "performed",
    [(attention, attention_backward), pytest.param((multiplied, multiplied_backward), marks=pytest.mark.thorough)],
    ids=["fused", "products"],
)
@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradient_are_those_of_torchs_definition(
    name: str, performed: tuple[Performed, Performed], dtype: torch.dtype
) -> None:
    assert_is_defined_so(*performed, name, dtype)
