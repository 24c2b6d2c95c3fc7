"""The recorder learns the dtype of an op that works element by element once, for all shapes: the type is the one that torch gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.frontend.tracing.recorder.record import Recorder
from planner.frontend.tracing.recorder.traced import Traced, geometry

SHAPES = ((4, 6), (2, 4, 6), (6,), (1, 6), (4, 1), (), (7, 4, 1))
DTYPES = ((torch.float32, torch.float32), (torch.int64, torch.float32), (torch.bfloat16, torch.float64))
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, y: x * y,
    "add and scale": lambda x, y: x + 2.5 * y,
    "divide": lambda x, y: x / (y + 1),
    "compare": lambda x, y: x > y,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "of one": lambda x, y: (x + 0).exp(),
    "of a transposed": lambda x, y: x.mT.contiguous() * 2 if x.ndim > 1 else x,
    "of a view": lambda x, y: (x.mT * 2).mT if x.ndim > 1 else x,
    "of a part": lambda x, y: x[..., 1:] * 2 if x.ndim else x,
}


def broadcast(*shapes: tuple[int, ...]) -> bool:
    try:
        torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", OPS)
def test_a_type_that_was_learned_of_another_shape_is_the_one_that_torch_gives(name: str) -> None:
    pairs = [(a, b) for a, b in itertools.product(SHAPES, SHAPES) if broadcast(a, b)]
    with FakeTensorMode():
        recorder = Recorder({}, lambda node: None)
        for dtypes in DTYPES:
            for shapes in pairs:
                given = [recorder.placeholder(torch.Size(s), d, False) for s, d in zip(shapes, dtypes, strict=True)]
                expected = OPS[name](*(torch.empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)))
                with recorder:
                    made = OPS[name](*given)
                assert isinstance(made, Traced)
                assert geometry(made.meta.example) == geometry(expected), (shapes, dtypes)
                assert (made.meta.shape, made.meta.strides, made.meta.offset, made.meta.dtype) == geometry(expected)
