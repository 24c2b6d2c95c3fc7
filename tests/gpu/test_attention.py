"""The fused kernels of attention on a real CUDA device: flash, memory-efficient, and products in float64.  Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from planner.frontend.attention.ops import attention, attention_backward
from tests.oracles.attention_definition import CASES, FORMATS, assert_is_defined_so

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradient_are_those_of_torchs_definition(name: str, dtype: torch.dtype) -> None:
    assert_is_defined_so(attention, attention_backward, name, dtype, "cuda")
