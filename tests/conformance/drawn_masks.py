"""Models of the matrix with dropout at every usual place, and what each device drops."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F
from matrix import MODELS, OPTIMIZER
from matrix import program as plain_program
from oracle import Outcome as Eager
from oracle import train_eagerly
from torch import Tensor, nn

from backend.ops.kernels import kernel
from planner.frontend import Program
from planner.frontend.random import kernels

RATE = 0.1

Key = tuple[int, int, int]
"""(draw, step, micro-batch)"""


class _Dropping:
    """The forward of a layer, and then dropout; a method's stand-in that a deep copy takes along."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        return F.dropout(type(self.layer).forward(self.layer, x), RATE)


@cache
def program(model: str) -> Program:
    """The matrix's model with dropout behind every embedding, linear layer and convolution but the last, and the paths of modules unchanged."""
    made = plain_program(model)
    module = copy.deepcopy(made.module)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.Embedding)]
    assert len(layers) > 2 and model in MODELS
    for layer in layers[:-1]:
        layer.forward = _Dropping(layer)  # type: ignore[method-assign,assignment]
    return Program(module, made.example_inputs, made.loss, OPTIMIZER, name=model, data=made.data, seed=11)


@dataclass(frozen=True)
class Masks:
    """pieces: what devices kept, and where in the tensor of the micro-batch it begins."""

    pieces: dict[Key, list[tuple[tuple[int, ...], Tensor]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, kept: Tensor, steps: Tensor, whole: tuple[int, ...], offsets: tuple[int, ...], draw: int, micro_batch: int) -> None:
        self.pieces[draw, int(steps), micro_batch].append((tuple(offsets) or (0,) * len(whole), kept))


@contextmanager
def noted() -> Iterator[Masks]:
    """Within it every dropout, on whichever device, says what it kept."""
    masks, dropout, bernoulli = Masks(), kernels.dropout, kernels.bernoulli

    def noting_dropout(x: Tensor, seed: Tensor, steps: Tensor, p: float, divisor: float, whole, offsets, draw, micro_batch=0) -> Tensor:  # type: ignore[no-untyped-def]
        masks.note(
            dropout(torch.ones_like(x), seed, steps, p, 1.0, whole, offsets, draw, micro_batch) != 0,
            steps,
            whole,
            offsets,
            draw,
            micro_batch,
        )
        return dropout(x, seed, steps, p, divisor, whole, offsets, draw, micro_batch)

    def noting_bernoulli(seed: Tensor, steps: Tensor, size, dtype, p: float, whole, offsets, draw, micro_batch=0) -> Tensor:  # type: ignore[no-untyped-def]
        kept = bernoulli(seed, steps, size, dtype, p, whole, offsets, draw, micro_batch)
        masks.note(kept != 0, steps, whole, offsets, draw, micro_batch)
        return kept

    before = dict(kernels.KERNELS)
    kernels.KERNELS.update({"regista.dropout": noting_dropout, "regista.bernoulli": noting_bernoulli})
    kernels.bernoulli = noting_bernoulli
    kernel.cache_clear()
    try:
        yield masks
    finally:
        kernels.KERNELS.update(before)
        kernels.bernoulli = bernoulli
        kernel.cache_clear()


@cache
def expected(model: str, micro_batches: int, steps: int) -> tuple[Eager, Masks]:
    """Plain PyTorch on one device, and its masks."""
    with noted() as masks:
        return train_eagerly(program(model), micro_batches, steps), masks


def assert_masks_are_those_of_one_device(masks: Masks, alone: Masks) -> None:
    """Bit for bit, and every element that one device draws is drawn."""
    wholes: Mapping[Key, Tensor] = {key: pieces[0][1] for key, pieces in alone.pieces.items()}
    assert masks.pieces.keys() == wholes.keys()
    for key, pieces in masks.pieces.items():
        drawn = torch.zeros_like(wholes[key])
        for offsets, kept in pieces:
            box = tuple(slice(o, o + n) for o, n in zip(offsets, kept.shape, strict=True))
            assert torch.equal(wholes[key][box], kept), (key, offsets)
            drawn[box] = True
        assert bool(drawn.all()), key
