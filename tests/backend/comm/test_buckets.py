"""Buckets are worked out from shapes alone; played here without gloo, on random shapes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.comm.buckets import Bucket, bucket_of, largest
from backend.comm.collectives import exchange
from backend.comm.scratch import Scratch, unflat
from backend.layout.sharding import glue, slice_part
from planner.ir.sbp import B, NdSbp, P, Partial, S, Sbp, Split

STEPS = ((P, S(0)), (P, S(1)), (S(0), B), (S(1), B), (S(0), S(1)), (S(1), S(0)))

SHAPES = st.lists(st.tuples(st.integers(4, 9), st.integers(4, 9), st.integers(1, 3)), min_size=1, max_size=4)


def buckets_of(src: Sbp, dst: Sbp, parts: int, shapes: list[tuple[int, int, int]]) -> list[Bucket]:
    """The same bucket on every rank."""
    return [bucket_of(src, dst, parts, rank, range(len(shapes)), torch.float32, shapes) for rank in range(parts)]


def held_by(src: Sbp, parts: int, shape: tuple[int, ...], rng: torch.Generator) -> list[Tensor]:
    """What each rank holds of one tensor: whole numbers, so that sums are exact."""
    values = [torch.randint(-99, 100, shape, generator=rng).float() for _ in range(parts)]
    if isinstance(src, Partial):
        return values
    return [slice_part(values[0], NdSbp((src,)), (parts,), (rank,)) for rank in range(parts)]


@given(st.sampled_from(STEPS), st.integers(2, 4), SHAPES, st.integers(0, 99))
def test_the_pieces_that_neighbours_cut_out_make_up_the_result_where_they_are_expected(
    step: tuple[Sbp, Sbp], parts: int, shapes: list[tuple[int, int, int]], seed: int
) -> None:
    (src, dst), rng = step, torch.Generator().manual_seed(seed)
    buckets = buckets_of(src, dst, parts, shapes)
    held = [held_by(src, parts, shape, rng) for shape in shapes]
    scratches = [Scratch() for _ in range(parts)]
    sent = [
        scratch.sent(bucket, [parts_of[r] for parts_of in held]) for r, (scratch, bucket) in enumerate(zip(scratches, buckets, strict=True))
    ]
    assert [scratch.held_bytes for scratch in scratches] == [bucket.needs["sent"] for bucket in buckets]
    for rank, bucket in enumerate(buckets):
        # An all-gather brings all that the others send, an all-to-all the piece for this rank.
        came = sent if dst == B else [flat.split(list(other.send_lengths))[rank] for flat, other in zip(sent, buckets, strict=True)]
        assert tuple(flat.numel() for flat in came) == bucket.receive_lengths
        received = torch.cat(came)
        assert bucket.straight or bucket.needs["received"] == received.nbytes
        rows = [unflat(received[start:end], pieces) for (start, end), pieces in zip(bucket.spans, bucket.pieces, strict=True)]
        for number, parts_of in enumerate(held):
            assert torch.equal(glue(src, [row[number] for row in rows]), exchange(src, dst, parts_of)[rank])


@given(st.sampled_from(STEPS), st.integers(2, 4), SHAPES, st.integers(0, 99))
def test_a_tensor_that_is_sent_or_received_as_it_lies_takes_no_scratch(
    step: tuple[Sbp, Sbp], parts: int, shapes: list[tuple[int, int, int]], seed: int
) -> None:
    (src, dst), rng = step, torch.Generator().manual_seed(seed)
    held = held_by(src, parts, shapes[0], rng)
    for value, bucket in zip(held, buckets_of(src, dst, parts, shapes[:1]), strict=True):
        flat = Scratch().sent(bucket, [value])
        assert (bucket.needs["sent"] == 0) == (flat.data_ptr() == value.data_ptr())
        if bucket.straight:
            assert isinstance(src, Split) and dst == B and bucket.needs["received"] == 0
            assert torch.equal(torch.cat([part.reshape(-1) for part in held]).view(shapes[0]), glue(src, held))


def test_a_local_step_an_all_reduce_and_an_axis_of_one_rank_take_no_scratch() -> None:
    for src, dst, parts in ((S(0), S(0), 2), (B, S(1), 2), (S(0), P, 2), (P, B, 2), (P, S(0), 1), (S(0), B, 1)):
        assert all(set(bucket.needs.values()) == {0} for bucket in buckets_of(src, dst, parts, [(4, 4, 1)]))


def test_acts_one_at_a_time_share_scratch_of_the_largest_of_each_use() -> None:
    assert largest([{"sent": 8, "received": 0}, {"sent": 4, "received": 12}]) == {"sent": 8, "received": 12}
    scratch = Scratch()
    scratch.reserve({"sent": 8, "received": 12})
    first = scratch.take("sent", torch.empty(0), 2)
    assert scratch.take("sent", torch.empty(0, dtype=torch.int64), 1).data_ptr() == first.data_ptr() and scratch.held_bytes == 20
