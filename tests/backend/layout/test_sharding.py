"""Cutting logical tensors into parts and back (SEMANTICS 1 and 2.2)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.comm.collectives import exchange
from backend.layout.boxing import local_step
from backend.layout.sharding import glue, join_parts, reduce_parts, slice_part
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.sbp import B, NdSbp, P, Partial, ReduceOp, S, Sbp, coordinates, part_of

ENTRIES = st.sampled_from([B, P, S(0), S(1), Partial(ReduceOp.MAX), Partial(ReduceOp.MIN)])
SHAPES = st.tuples(st.integers(6, 11), st.integers(6, 9))


@given(shape=SHAPES, mesh=st.sampled_from([(1,), (2,), (3,), (2, 2), (2, 3)]), entries=st.tuples(ENTRIES, ENTRIES))
def test_joining_the_parts_gives_the_tensor_back(shape: tuple[int, int], mesh: tuple[int, ...], entries: tuple[Sbp, Sbp]) -> None:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    sbp = NdSbp(entries[: len(mesh)])
    parts = {c: slice_part(value, sbp, mesh, c) for c in coordinates(mesh)}
    assert torch.equal(join_parts(parts, sbp, mesh, shape), value)
    for coordinate, part in parts.items():
        assert tuple(part.shape) == sbp.local_shape(shape, mesh, coordinate)
        assert part.is_contiguous()


@given(shape=SHAPES, parts=st.integers(1, 4), src=ENTRIES, dst=ENTRIES)
def test_one_boxing_step_keeps_the_logical_value(shape: tuple[int, int], parts: int, src: Sbp, dst: Sbp) -> None:
    rng = torch.Generator().manual_seed(1)
    # Partial parts of mixed sign: only those tell a sum from a copy.
    held = [torch.randn(shape, generator=rng) for _ in range(parts)]
    if src == B:
        held = [held[0]] * parts
    elif not isinstance(src, Partial):
        held = [held[0].narrow(src.dim, *part_of(shape[src.dim], parts, i)) for i in range(parts)]
    try:
        after = exchange(src, dst, held)
    except Unsupported:
        assert isinstance(src, Partial)
        assert isinstance(dst, Partial)
        return
    torch.testing.assert_close(glue(dst, after), glue(src, held))


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("dim", [0, 1])
def test_padding_a_split_makes_partial_values_of_the_same_tensor(op: ReduceOp, dim: int) -> None:
    value = torch.randn(5, 7)
    parts = [value.narrow(dim, *part_of(value.shape[dim], 3, i)) for i in range(3)]
    padded = [local_step(S(dim), Partial(op), 3, i, value.shape[dim])(part) for i, part in enumerate(parts)]
    assert torch.equal(reduce_parts(op, padded), value)


def test_local_boxing_refuses_what_needs_a_neighbour() -> None:
    with pytest.raises(Unsupported, match="BOXING task"):
        local_step(P, B, 2, 0)
    with pytest.raises(InvalidPlan, match="extent"):
        local_step(S(0), P, 2, 0)


def test_joining_tells_copies_that_differ() -> None:
    parts = {(0,): torch.zeros(2), (1,): torch.ones(2)}
    with pytest.raises(InvalidPlan, match="differ"):
        join_parts(parts, NdSbp.parse("B"), (2,), (2,), check_equal=True)
