"""Readers: every part is a slice of the whole, every epoch holds each sample once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.data import Loader, Reader, open_source
from backend.data.describe import Arrays, Order
from backend.data.reader import OpenFile
from planner.ir.sbp import NdSbp
from tests.backend.data.reader_cases import BATCH, MICRO_BATCHES, SIZE, SOURCES, loader, whole_set


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_holds_the_samples_of_its_order(kind: str, shuffle: bool) -> None:
    served = loader(kind, Order(shuffle=shuffle, seed=3))
    everything = whole_set(kind, served.reader)
    for step in range(3):
        samples = [s for m in range(MICRO_BATCHES) for s in served.samples(step, m, (0, BATCH // MICRO_BATCHES))]
        for served_part, whole in zip(served(step), everything, strict=True):
            torch.testing.assert_close(served_part, whole[samples], rtol=0, atol=1e-6 if kind == "images" else 0)


@st.composite
def boxes(draw: st.DrawFn, kind: str) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Any boxes of any batch inputs, at least one."""

    def box(number: int) -> tuple[tuple[int, int], ...]:
        spans = []
        for extent in (BATCH // MICRO_BATCHES, *loader(kind).reader.made[number].shape):
            offset = draw(st.integers(0, extent - 1))
            spans.append((offset, draw(st.integers(1, extent - offset))))
        return tuple(spans)

    return [(number, box(number)) for number in draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))]


@pytest.mark.parametrize("kind", SOURCES)
@given(data=st.data())
def test_a_part_is_the_slice_of_the_whole(kind: str, data: st.DataObject) -> None:
    served = loader(kind, Order(seed=data.draw(st.integers(0, 3))))
    step, micro_batch = data.draw(st.integers(0, 5)), data.draw(st.integers(0, MICRO_BATCHES - 1))
    asked = data.draw(boxes(kind))
    size = BATCH // MICRO_BATCHES
    batch = served(step)
    for (number, box), part in zip(asked, served.part(step, micro_batch, asked), strict=True):
        whole = batch[number][micro_batch * size : (micro_batch + 1) * size]
        for dim, (offset, length) in enumerate(box):
            whole = whole.narrow(dim, offset, length)
        assert part.is_contiguous()
        assert torch.equal(part, whole)


@pytest.mark.parametrize("kind", SOURCES)
def test_an_epoch_holds_every_sample_once_and_the_next_one_in_another_order(kind: str) -> None:
    served = loader(kind, Order(seed=1))
    total = served.reader.num_samples
    steps = 3 * total // BATCH + 1
    size = BATCH // MICRO_BATCHES
    stream = [s for step in range(steps) for m in range(MICRO_BATCHES) for s in served.samples(step, m, (0, size))]
    epochs = [stream[e * total : (e + 1) * total] for e in range(3)]
    assert all(sorted(epoch) == list(range(total)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_only_the_bytes_of_the_part_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = OpenFile.read_into
    monkeypatch.setattr(OpenFile, "read_into", lambda self, buffer, offset: (read.append(buffer.size), plain(self, buffer, offset))[1])
    loader("arrays").part(0, 0, [(0, ((1, 2), (0, 3), (0, SIZE), (0, SIZE)))])
    assert sum(read) == 2 * 3 * SIZE * SIZE * 4


def test_samples_stand_along_the_dim_that_micro_batches_slice(tmp_path: Path) -> None:
    """A Plan whose batch lies along dim 1 gets the transposed parts of one whose batch lies along dim 0."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, handmade.WIDTH)).astype(np.float32))
    reader = open_source(Arrays(paths=(str(tmp_path / "x.npy"),)))
    plan = handmade.data_parallel(4, 2)
    x = plan.regst["x"]
    placed = replace(x.tensors[0], shape=x.tensors[0].shape[::-1], sbp=NdSbp.parse("S(1)"))
    turned = replace(
        plan,
        regsts=tuple(replace(r, tensors=(placed,)) if r.id == "x" else r for r in plan.regsts),
        batch_inputs=tuple(replace(entry, batch_dim=1) for entry in plan.batch_inputs),
    )
    one, other = Loader(reader, plan), Loader(reader, turned)
    assert torch.equal(one(2)[0], other(2)[0].T)
    for rank in range(4):
        (part,), (transposed,) = one.source(plan, plan.task["load"], rank, 3), other.source(turned, turned.task["load"], rank, 3)
        assert torch.equal(part, transposed.T) and transposed.is_contiguous()


def test_every_reader_is_a_reader() -> None:
    assert all(isinstance(loader(kind).reader, Reader) for kind in SOURCES)
