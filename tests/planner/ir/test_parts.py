"""Who holds which part of a tensor, who meets whom, what is sent: against numbers written into arrays (SEMANTICS 1.1 to 1.3, 1.7, 2, 3.10)."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from matrix import read_plan

from planner.ir.actors.routes import pieces, routes
from planner.ir.collective import Collective, collective_for
from planner.ir.errors import InvalidPlan, RegistaError
from planner.ir.plan import PlacedTensor, Placement, TaskKind
from planner.ir.sbp import B, NdSbp, P, Partial, ReduceOp, S, Sbp, Split, part_of
from planner.ir.tensor import DType, TensorType

MESHES = ((1,), (2,), (3,), (2, 2), (3, 2))


def placement(mesh: tuple[int, ...], first: int = 0) -> Placement:
    return Placement(id=f"p{first}", ranks=tuple(range(first, first + int(np.prod(mesh)))), mesh=mesh)


def held(array: np.ndarray, layout: NdSbp, mesh: tuple[int, ...], coordinate: tuple[int, ...]) -> np.ndarray:
    """The part that a coordinate holds: axis after axis, cut by numpy."""
    for axis, entry in enumerate(layout.entries):
        if isinstance(entry, Split):
            array = np.array_split(array, mesh[axis], axis=entry.dim)[(coordinate[axis] - entry.turn) % mesh[axis]]
    return array


def layouts(axes: int, entries: tuple[Sbp, ...] = (S(0), S(1), B)) -> list[NdSbp]:
    return [NdSbp(chosen) for chosen in product(entries, repeat=axes)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_part_of_a_coordinate_is_that_of_cutting_axis_after_axis(mesh: tuple[int, ...]) -> None:
    array = np.arange(13 * 12).reshape(13, 12)
    for layout in layouts(len(mesh)):
        parts = []
        for coordinate in product(*(range(size) for size in mesh)):
            region = layout.region(array.shape, mesh, coordinate)
            part = array[tuple(slice(offset, offset + length) for offset, length in region)]
            assert np.array_equal(part, held(array, layout, mesh, coordinate))
            assert layout.local_shape(array.shape, mesh, coordinate) == part.shape
            parts.append(part)
        assert layout.local_shape(array.shape, mesh) == parts[0].shape
        assert layout.splits_evenly(array.shape, mesh) == (len({part.shape for part in parts}) == 1)
        assert sum(part.size for part in parts) == array.size * layout.num_copies(mesh)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_turned_parts_lie_further_around_the_axis(turn: int) -> None:
    array = np.arange(12)
    layout = NdSbp((Split(0, turn),))
    for coordinate in range(3):
        ((offset, length),) = layout.region((12,), (3,), (coordinate,))
        assert np.array_equal(array[offset : offset + length], held(array, layout, (3,), (coordinate,)))
        assert Split(0, turn).part_at(coordinate, 3) == (coordinate - turn) % 3
    assert Split(0, turn).part_at((1 + turn) % 3, 3) == 1


def test_a_dim_is_long_enough_for_every_cut_and_parts_differ_by_one_at_most() -> None:
    for extent, parts in product(range(1, 9), range(1, 9)):
        spans = [part_of(extent, parts, index) for index in range(parts)]
        assert [offset for offset, _ in spans] == [sum(length for _, length in spans[:n]) for n in range(parts)]
        assert sum(length for _, length in spans) == extent and sorted((n for _, n in spans), reverse=True) == [n for _, n in spans]
        assert spans[0][1] - spans[-1][1] <= 1
        layout = NdSbp((S(0),))
        assert layout.splits_evenly((extent,), (parts,)) == (extent % parts == 0)
        if extent >= parts:
            assert layout.region((extent,), (parts,), (0,)) == (spans[0],)
        else:
            with pytest.raises(InvalidPlan, match=r"SEMANTICS 1\.2"):
                layout.region((extent,), (parts,), (0,))
    for layout in ("S(2)", "S(3)"):
        with pytest.raises(InvalidPlan, match=r"SEMANTICS 1\.2"):
            NdSbp.parse(layout).region((4, 4), (2,), (0,))
        assert not NdSbp.parse(layout).splits_evenly((4, 4), (2,))
    assert not NdSbp.parse("S(0)").splits_evenly((0,), (2,)), "an empty dim has no parts"


@pytest.mark.parametrize("text", ["B", "P", "P(max)", "P(min)", "S(0)", "S(12)", "S(1)+3", "S(0),B", "P(max),S(1),B", ""])
def test_a_layout_is_what_its_text_says_wherever_it_was_made(text: str) -> None:
    layout = NdSbp.parse(text)
    assert str(layout) == text and NdSbp.parse(f" {text} ".replace(",", " , ")) == layout
    for again in (pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout), NdSbp(tuple(layout.entries))):
        assert again == layout and hash(again) == hash(layout)
    assert len(layout) == len(layout.entries) and layout != NdSbp.parse("B,B,B,B") and layout != text
    assert layout.has_partial == ("P" in text)
    assert layout.broadcast(len(layout)).entries == (B,) * len(layout)


@pytest.mark.parametrize("text", ["S", "S(-1)", "S(a)", "P(sum", "P(mean)", "X", "S(0)+", "B;B", "S(0)B", "S(00000)"])
def test_another_text_is_no_layout(text: str) -> None:
    with pytest.raises(InvalidPlan, match="is not an SBP"):
        NdSbp.parse(text)


def test_entries_of_a_layout_are_its_axes() -> None:
    layout = NdSbp.parse("S(0),P(max),B")
    assert [layout[axis] for axis in range(3)] == [S(0), Partial(ReduceOp.MAX), B] == list(layout.entries)
    assert layout.replace(1, B) == NdSbp.parse("S(0),B,B") and layout.replace(0, P) == NdSbp.parse("P,P(max),B")
    assert layout.replace(2, S(1)) == NdSbp.parse("S(0),P(max),S(1)")
    assert NdSbp.parse("P") == NdSbp((P,)) != NdSbp.parse("P(max)") and P.op is ReduceOp.SUM


# --- exchanges ---------------------------------------------------------------------------------------------------------------

MAX, TURNED = Partial(ReduceOp.MAX), Split(0, 1)


@pytest.mark.parametrize(
    ("src", "dst", "collective"),
    [
        *((entry, entry, Collective.LOCAL) for entry in (B, P, MAX, S(0), TURNED)),
        *((B, entry, Collective.LOCAL) for entry in (P, MAX, S(0), S(1))),
        (S(0), P, Collective.LOCAL),
        (S(0), MAX, Collective.LOCAL),
        (S(0), S(1), Collective.ALL_TO_ALL),
        (S(1), S(0), Collective.ALL_TO_ALL),
        (S(0), B, Collective.ALL_GATHER),
        (P, S(0), Collective.REDUCE_SCATTER),
        (MAX, S(1), Collective.REDUCE_SCATTER),
        (P, B, Collective.ALL_REDUCE),
        (MAX, B, Collective.ALL_REDUCE),
        (S(0), TURNED, Collective.SHIFT),
        (TURNED, S(0), Collective.SHIFT),
        (TURNED, Split(0, 2), Collective.SHIFT),
    ],
    ids=str,
)
def test_one_collective_turns_one_layout_into_another(src: Sbp, dst: Sbp, collective: Collective) -> None:
    assert collective_for(src, dst) is collective


@pytest.mark.parametrize(
    ("src", "dst", "says"),
    [
        (P, MAX, "two different partial reductions"),
        (MAX, P, "two different partial reductions"),
        *((TURNED, entry, "only shifted") for entry in (B, P, S(1), Split(1, 1))),
        *((entry, TURNED, "only shifted") for entry in (B, P, S(1), Split(1, 1))),
    ],
    ids=str,
)
def test_what_no_collective_does_is_refused(src: Sbp, dst: Sbp, says: str) -> None:
    with pytest.raises(RegistaError, match=says):
        collective_for(src, dst)


# --- placements --------------------------------------------------------------------------------------------------------------


def test_ranks_of_a_placement_stand_row_major_on_its_mesh() -> None:
    on = Placement(id="p", ranks=(7, 3, 5, 1, 0, 2), mesh=(3, 2))
    assert [on.coordinate(rank) for rank in on.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [on.rank_at(on.coordinate(rank)) for rank in on.ranks] == list(on.ranks)
    assert on.lines(0) == ((7, 5, 0), (3, 1, 2)) and on.lines(1) == ((7, 3), (5, 1), (0, 2))
    for axis in (0, 1):
        for line in on.lines(axis):
            assert all(on.axis_ranks(axis, rank) == line for rank in line)


def test_parts_of_a_placed_tensor_are_those_of_its_ranks() -> None:
    on, tensor = Placement(id="p", ranks=(5, 3), mesh=(2,)), PlacedTensor(name="x", shape=(3, 4), dtype=DType.INT8, sbp=NdSbp.parse("S(0)"))
    assert [tensor.local_type(on, rank).shape for rank in (5, 3)] == [(2, 4), (1, 4)]
    assert {tensor.local_type(on, rank).dtype for rank in (5, 3)} == {DType.INT8}


def test_ranks_meet_in_a_collective_along_its_axis_and_in_nothing_else() -> None:
    plan = read_plan("mlp", "pipeline2_data2", "fp32")
    for task in plan.tasks:
        ranks = plan.ranks_of(task)
        assert ranks == plan.placement[task.placement].ranks
        for rank in ranks:
            assert plan.peers(task, rank) == (ranks if task.kind is TaskKind.BOXING else (rank,))


@pytest.mark.parametrize(("dtype", "size"), [(d, s) for d, s in zip(DType, (8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16), strict=True)], ids=str)
def test_a_type_has_the_bytes_of_its_elements(dtype: DType, size: int) -> None:
    type_ = TensorType((3, 5), dtype)
    assert (dtype.size_bytes, type_.numel, type_.size_bytes, type_.ndim) == (size, 15, 15 * size, 2)
    assert type_.with_shape((2,)) == TensorType((2,), dtype) and DType.parse(f"torch.{dtype.value}") is dtype is DType.parse(dtype.value)
    assert dtype.is_floating == ("float" in dtype.value) and dtype.is_complex == ("complex" in dtype.value)


# --- transfers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_mesh", "to_mesh"), [((2,), (2,)), ((1,), (3,)), ((3,), (2,)), ((4,), (4,)), ((2, 2), (2,)), ((2,), (2, 2))], ids=str
)
def test_a_transfer_brings_every_element_once_to_everybody_who_holds_it(from_mesh: tuple[int, ...], to_mesh: tuple[int, ...]) -> None:
    array = np.arange(7 * 6).reshape(7, 6)
    src_placement, dst_placement = placement(from_mesh), placement(to_mesh, first=10)
    for src_layout, dst_layout in product(layouts(len(from_mesh)), layouts(len(to_mesh))):
        src = PlacedTensor(name="x", shape=array.shape, dtype=DType.INT64, sbp=src_layout)
        dst = PlacedTensor(name="x", shape=array.shape, dtype=DType.INT64, sbp=dst_layout)
        sent = pieces(src, src_placement, dst, dst_placement)
        for rank in dst_placement.ranks:
            wanted = held(array, dst_layout, to_mesh, dst_placement.coordinate(rank))
            found, times = np.full_like(wanted, -1), np.zeros_like(wanted)
            for piece in (p for p in sent if p.dst_rank == rank):
                there = held(array, src_layout, from_mesh, src_placement.coordinate(piece.src_rank))
                here = tuple(slice(offset, offset + length) for offset, length in piece.dst_spans)
                found[here] = there[tuple(slice(offset, offset + length) for offset, length in piece.src_spans)]
                times[here] += 1
                assert piece.numel == times[here].size > 0
            assert np.array_equal(found, wanted) and (times == 1).all()


def test_receivers_share_the_senders_of_a_copy() -> None:
    whole = PlacedTensor(name="x", shape=(4,), dtype=DType.INT64, sbp=NdSbp.parse("B"))
    assert [(p.src_rank, p.dst_rank) for p in pieces(whole, placement((2,)), whole, placement((3,), first=10))] == [
        (0, 10),
        (1, 11),
        (0, 12),
    ]


@pytest.mark.parametrize(
    ("src", "dst", "shape", "says"), [("P", "B", (4,), "partial"), ("B", "P", (4,), "partial"), ("B", "B", (5,), "changes no shape")]
)
def test_partial_values_do_not_travel_and_shapes_do_not_change(src: str, dst: str, shape: tuple[int, ...], says: str) -> None:
    left = PlacedTensor(name="x", shape=(4,), dtype=DType.INT64, sbp=NdSbp.parse(src))
    right = PlacedTensor(name="x", shape=shape, dtype=DType.INT64, sbp=NdSbp.parse(dst))
    with pytest.raises(InvalidPlan, match=says):
        pieces(left, placement((2,)), right, placement((2,), first=10))


def test_routes_are_those_of_the_pieces() -> None:
    plan = read_plan("mlp", "pipeline2_data2", "fp32")
    for task in (task for task in plan.tasks if task.kind is TaskKind.TRANSFER):
        receivers = plan.placement[plan.regst[task.produces[0].regst].placement]
        assert routes(plan, task) == {rank: (to,) for rank, to in zip(plan.ranks_of(task), receivers.ranks, strict=True)}
