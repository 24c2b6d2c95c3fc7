"""Draws on a real CUDA device have the bits of those on a CPU.  Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from planner.frontend.random.kernels import bernoulli, dropout, uniform, words

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SEED, STEPS = torch.tensor((7 << 32) + 12345), torch.tensor(3)
PARTS = {
    "whole": ((6, 5, 7), (6, 5, 7), ()),
    "columns": ((6, 5, 3), (6, 5, 7), (0, 0, 2)),
    "rows": ((2, 5, 7), (6, 5, 7), (3, 0, 0)),
    "far": ((1, 4), (1 << 18, 1 << 18), ((1 << 18) - 1, 0)),
    "scalar": ((), (), ()),
    "empty": ((0, 3), (0, 3), ()),
    "large": ((1031, 257), (1031, 257), ()),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_draw_has_the_bits_of_a_cpus(part: str) -> None:
    shape, whole, offsets = PARTS[part]
    there = SEED.cuda(), STEPS.cuda()
    for draw, micro_batch in ((0, 0), (1, 2), (11, 1)):
        assert torch.equal(
            words(*there, shape, whole, offsets, draw, micro_batch).cpu(), words(SEED, STEPS, shape, whole, offsets, draw, micro_batch)
        )
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            where = whole, offsets, draw, micro_batch
            assert torch.equal(uniform(*there, shape, dtype, *where).cpu(), uniform(SEED, STEPS, shape, dtype, *where)), dtype
            assert torch.equal(bernoulli(*there, shape, dtype, 0.3, *where).cpu(), bernoulli(SEED, STEPS, shape, dtype, 0.3, *where)), dtype
            x = torch.randn(shape, generator=torch.Generator().manual_seed(draw)).to(dtype)
            for p in (0.0, 0.9, 1.0):
                assert torch.equal(dropout(x.cuda(), *there, p, p, *where).cpu(), dropout(x, SEED, STEPS, p, p, *where)), (dtype, p)


def test_a_draw_takes_operands_of_any_strides_and_a_place_for_its_result() -> None:
    x, out = torch.randn(5, 8), torch.empty(5, 8, device="cuda")
    here = dropout(x.t(), SEED, STEPS, 0.5, 0.5, (8, 5), (), 2)
    there = dropout(x.cuda().t(), SEED.cuda(), STEPS.cuda(), 0.5, 0.5, (8, 5), (), 2, out=out.t())
    assert there.data_ptr() == out.data_ptr() and torch.equal(there.cpu(), here)
