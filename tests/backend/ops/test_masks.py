"""Filling what a mask covers gives torch's numbers bit for bit, whatever the format, the shapes, the strides and the number filled in."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from backend.ops.cpu import masks
from backend.ops.cpu.masks import masked_fill

FORMATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = {
    "one mask for all heads": ((2, 4, 64, 64), (64, 64)),
    "one mask per sequence": ((2, 4, 64, 64), (2, 1, 64, 64)),
    "a number each": ((2, 4, 64, 64), (2, 4, 64, 64)),
    "a row each": ((300, 64), (300, 1)),
    "all or nothing": ((300, 64), ()),
}


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """With zeros of both signs, infinities and nan among them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    for place, special in enumerate((0.0, -0.0, math.inf, -math.inf, math.nan)):
        x.view(-1)[place::97] = special
    return x


def mask_of(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("value", [-math.inf, 0.0, -0.0, -1e4, 3, math.nan], ids=str)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_filled_tensor_is_torchs_bit_for_bit(dtype: torch.dtype, shapes: str, value: float) -> None:
    x, mask = numbers(SHAPES[shapes][0], dtype), mask_of(SHAPES[shapes][1])
    assert x.numel() >= masks._SMALLEST, "large enough for bits"
    before, wanted = x.clone(), torch.masked_fill(x, mask, value)
    assert torch.equal(bits(masked_fill(x, mask, value)), bits(wanted)) and torch.equal(bits(x), bits(before))
    given = torch.empty_like(x)
    assert masked_fill(x, mask, value, out=given) is given and torch.equal(bits(given), bits(wanted))


def test_of_a_transposed_tensor_the_result_is_row_major_or_as_the_memory_that_is_given() -> None:
    x, mask = numbers((4, 64, 128), torch.float32).transpose(1, 2), mask_of((128, 64))
    wanted = torch.masked_fill(x, mask, -math.inf)
    made = masked_fill(x, mask, -math.inf)
    assert torch.equal(bits(made), bits(wanted)) and made.stride() == wanted.stride()
    for given in (torch.empty(4, 128, 64), torch.empty(4, 64, 128).transpose(1, 2)):
        assert torch.equal(bits(masked_fill(x, mask, -math.inf, out=given)), bits(wanted))


@pytest.mark.parametrize(
    ("x", "mask"),
    [
        (torch.zeros(8, 8), torch.eye(8) > 0),
        (torch.zeros(64, 256), torch.ones(4, 64, 256) > 0),
        (torch.zeros(1, 2**15), torch.ones(3, 2**15) > 0),
        (torch.arange(2**15), torch.ones(2**15) > 0),
        (torch.zeros(2**15, dtype=torch.complex64), torch.ones(2**15) > 0),
    ],
    ids=["small", "a mask of more dims than the tensor", "a mask of more rows", "integers", "complex numbers"],
)
def test_what_has_no_bits_of_its_own_is_torchs(x: Tensor, mask: Tensor) -> None:
    assert torch.equal(masked_fill(x, mask, 7), torch.masked_fill(x, mask, 7))


def test_a_number_that_the_format_does_not_hold_is_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        masked_fill(torch.zeros(2**15, dtype=torch.float16), mask_of((2**15,)), -1e9)
