"""Boxing paths: they arrive, they keep the value, and they take what the table of SEMANTICS 2 says."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.comm.collectives import exchange
from backend.layout.sharding import join_parts, slice_part
from planner.boxing import boxing_path
from planner.ir.collective import Collective, sent_bytes
from planner.ir.plan import Boxing, Placement
from planner.ir.sbp import B, NdSbp, P, Partial, ReduceOp, S, Sbp, coordinates
from planner.ir.tensor import DType, TensorType

LOGICAL = TensorType((8, 4), DType.FLOAT32)
MESH = (2, 2)
ENTRIES: tuple[Sbp, ...] = (S(0), S(1), B, P)


def step_s(collective: Collective, total_bytes: float, axis: int) -> float:
    """Bytes over a slow outer and a quick inner axis, with a latency."""
    return 0.0 if collective is Collective.LOCAL else 1e-6 + sent_bytes(collective, total_bytes, MESH[axis]) / (1e8 if axis == 0 else 1e9)


def path(src: str | NdSbp, dst: str | NdSbp) -> tuple[Boxing, ...]:
    as_nd = [NdSbp.parse(s) if isinstance(s, str) else s for s in (src, dst)]
    return boxing_path(LOGICAL, MESH, as_nd[0], as_nd[1], step_s)[0]


def shard(value: Tensor, sbp: NdSbp) -> dict[tuple[int, ...], Tensor]:
    """Parts on the mesh; partial entries are random numbers that sum to the value."""
    parts = {
        c: slice_part(value, NdSbp(tuple(B if isinstance(e, Partial) else e for e in sbp.entries)), MESH, c).clone()
        for c in coordinates(MESH)
    }
    for axis, entry in enumerate(sbp.entries):
        if isinstance(entry, Partial):
            for c in [c for c in coordinates(MESH) if c[axis] == 0]:
                other = (*c[:axis], 1, *c[axis + 1 :])
                noise = torch.randn_like(parts[c])
                parts[c], parts[other] = noise, parts[c] - noise
    return parts


def perform(parts: dict[tuple[int, ...], Tensor], step: Boxing) -> dict[tuple[int, ...], Tensor]:
    placement = Placement(id="p", ranks=tuple(range(4)), mesh=MESH)
    after: dict[tuple[int, ...], Tensor] = {}
    for rank in placement.ranks:
        crew = placement.axis_ranks(step.axis, rank)
        if crew[0] != rank:
            continue
        where = [placement.coordinate(member) for member in crew]
        for c, part in zip(where, exchange(step.src[step.axis], step.dst[step.axis], [parts[c] for c in where]), strict=True):
            after[c] = part
    return after


def one_dim_pairs() -> list[tuple[NdSbp, NdSbp]]:
    states = [NdSbp(pair) for pair in product(ENTRIES, repeat=2)]
    return [(a, b) for a in states for b in states]


@given(st.sampled_from(one_dim_pairs()))
@settings(max_examples=256, deadline=None)
def test_steps_chain_from_source_to_destination_along_one_axis_each(pair: tuple[NdSbp, NdSbp]) -> None:
    src, dst = pair
    here = src
    for step in path(src, dst):
        assert step.src == here
        assert [axis for axis in range(2) if step.src[axis] != step.dst[axis]] == [step.axis]
        here = step.dst
    assert here == dst


@given(st.sampled_from([(a, b) for a, b in one_dim_pairs() if not a.has_partial]))
@settings(max_examples=200, deadline=None)
def test_boxing_never_changes_the_value(pair: tuple[NdSbp, NdSbp]) -> None:
    src, dst = pair
    value = torch.randn(LOGICAL.shape)
    parts = shard(value, src)
    for step in path(src, dst):
        parts = perform(parts, step)
    torch.testing.assert_close(join_parts(parts, dst, MESH, LOGICAL.shape), value)


@pytest.mark.parametrize(("src", "dst"), [("P,B", "B,B"), ("P,B", "S(0),B"), ("P,S(1)", "B,S(1)"), ("B,P", "B,S(0)"), ("S(0),P", "S(0),B")])
def test_partial_values_are_reduced_to_their_sum(src: str, dst: str) -> None:
    value = torch.randn(LOGICAL.shape)
    parts = shard(value, NdSbp.parse(src))
    for step in path(src, dst):
        parts = perform(parts, step)
    torch.testing.assert_close(join_parts(parts, NdSbp.parse(dst), MESH, LOGICAL.shape), value)


@pytest.mark.parametrize(
    ("src", "dst", "collectives"),
    [
        ("P,B", "B,B", [Collective.ALL_REDUCE]),
        ("P,B", "S(0),B", [Collective.REDUCE_SCATTER]),
        ("S(0),B", "B,B", [Collective.ALL_GATHER]),
        ("S(0),B", "S(1),B", [Collective.ALL_TO_ALL]),
        ("B,B", "S(0),S(0)", [Collective.LOCAL, Collective.LOCAL]),
        ("S(0),S(0)", "B,B", [Collective.ALL_GATHER, Collective.ALL_GATHER]),
    ],
)
def test_each_pair_takes_the_collective_of_the_table(src: str, dst: str, collectives: list[Collective]) -> None:
    assert [step.collective for step in path(src, dst)] == collectives


def test_inner_pieces_are_gathered_before_outer_ones() -> None:
    """In (S(0), S(0)) the pieces of axis 1 lie inside those of axis 0."""
    assert [step.axis for step in path("S(0),S(0)", "B,B")] == [1, 0]


def test_a_partial_value_of_one_kind_becomes_another_only_by_being_reduced() -> None:
    steps = boxing_path(LOGICAL, (2,), NdSbp((Partial(ReduceOp.MAX),)), NdSbp((P,)), lambda c, n, a: 1e-6 * (c is not Collective.LOCAL))[0]
    assert all(not (isinstance(s.src[0], Partial) and isinstance(s.dst[0], Partial)) for s in steps)
