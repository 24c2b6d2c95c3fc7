"""Addresses by strides are views of what they address, or refused."""

from __future__ import annotations

import random

import pytest
import torch
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from planner.frontend import SGD, Program
from planner.frontend.tracing.decomp.strides import as_strided_scatter, strided_view
from planner.ir.errors import Unsupported
from planner.parallelism.make import PlanOptions, make_plan

BATCH = 10


def test_a_strided_view_addresses_what_torch_addresses() -> None:
    """Any sizes, strides and offset within a dense tensor, whatever the order of its dims in memory."""
    for seed in range(200):
        rng = random.Random(seed)
        shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        x = torch.arange(float(torch.Size(shape).numel())).reshape(shape).permute(rng.sample(range(len(shape)), len(shape)))
        size = [rng.randint(1, 3) for _ in range(rng.randint(0, 3))]
        stride = [rng.choice((0, 1, 1, 2, 3, *x.stride())) for _ in size]
        offset = rng.randint(0, 3)
        reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        view = strided_view(x, size, stride, offset)
        if reach >= x.numel():
            assert view is None, seed
        else:
            assert view is not None and torch.equal(view, torch.as_strided(x, size, stride, offset)), seed
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), seed


def test_a_view_with_holes_is_not_addressed() -> None:
    assert strided_view(torch.arange(12.0).view(3, 4)[:, :2], [2], [1]) is None


@pytest.mark.parametrize("offset", [0, 3])
def test_a_scatter_by_strides_is_torchs(offset: int) -> None:
    x, source = torch.randn(3, 6), torch.randn(2, 3)
    wanted = torch.ops.aten.as_strided_scatter(x, source, [2, 3], [6, 2], offset)
    assert torch.equal(as_strided_scatter(x, source, [2, 3], [6, 2], offset), wanted)


class Strided(nn.Module):
    def __init__(self, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6) + 0.5)
        self.size, self.stride = size, stride

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).as_strided((x.shape[0], *self.size), (6, *self.stride))


@pytest.mark.parametrize(("size", "stride"), [((3, 2), (2, 1)), ((2, 3), (1, 2)), ((4, 3), (1, 1)), ((2, 2), (3, 1))])
def test_a_module_that_addresses_by_strides_trains_on_two_devices_like_on_one(size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """A fold, its transpose, overlapping windows, windows with a gap."""
    source = Program(Strided(size, stride), torch.randn(BATCH, 6), lambda y: y.square().mean(), SGD(lr=0.1))
    options = PlanOptions(pins=("input.0=S(0)",), strict=True)
    plan = make_plan(source.graph(), model="strided", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    assert_transparent(perform(plan, source.initial_state(), source.batch, 2, gradients=True), train_eagerly(source, 1, 2))


def test_addresses_outside_of_a_slice_are_refused() -> None:
    class Outside(Strided):
        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight)[:, :3].as_strided((x.shape[0], 2), (6, 5))

    with pytest.raises(Unsupported, match="addresses memory by strides"):
        Program(Outside((), ()), torch.randn(BATCH, 6), lambda y: y.square().mean()).graph()


def test_memory_that_is_not_written_yet_is_zeros_where_it_lies_in_rows() -> None:
    def filled(x: Tensor) -> Tensor:
        made = torch.empty_strided((BATCH, 6), (6, 1))
        made[:, 1:] = x[:, 1:]
        return made[:, 1:] * x[:, :1]

    class Filling(Strided):
        def forward(self, x: Tensor) -> Tensor:
            return filled(x * self.weight)

    source = Program(Filling((), ()), torch.randn(BATCH, 6), lambda y: y.square().mean(), SGD(lr=0.1))
    plan = make_plan(source.graph(), model="filling", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(strict=True))
    assert_transparent(perform(plan, source.initial_state(), source.batch, 2, gradients=True), train_eagerly(source, 1, 2))
