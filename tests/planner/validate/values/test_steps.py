"""When a step along one axis turns one layout into another, and which law forbids it otherwise."""

from __future__ import annotations

import pytest

from planner.ir.errors import InvalidPlan
from planner.ir.graph import Op, Ref, Role
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType, TensorType
from planner.validate.values.steps import LocalStep, broken_law

X = TensorType(shape=(8, 6), dtype=DType.FLOAT32)


def law(src: str, dst: str, axis: int, type_: TensorType = X, mesh: tuple[int, ...] = (2, 2, 2)) -> str | None:
    return broken_law(type_, mesh, NdSbp.parse(src), NdSbp.parse(dst), axis)


@pytest.mark.parametrize(
    ("src", "dst", "axis"),
    [
        ("S(0),B,B", "B,B,B", 0),
        ("S(0),S(0),B", "S(0),B,B", 1),
        ("P,P,B", "B,P,B", 0),
        ("P(max),P,B", "P(max),B,B", 1),
        ("B,B,B", "B,B,S(1)", 2),
        ("B,B,B", "B,P,B", 1),
        ("P,P,P", "P,P,P", 1),
    ],
)
def test_a_step_along_one_axis_is_possible(src: str, dst: str, axis: int) -> None:
    assert law(src, dst, axis) is None


@pytest.mark.parametrize(
    ("src", "dst", "axis", "said"),
    [
        ("S(0),B,B", "B,S(0),B", 0, "differ beside axis 0"),
        ("S(0),S(0),B", "B,S(0),B", 0, "a later axis splits dim 0 of S(0),S(0),B, too"),
        ("B,S(1),B", "S(1),S(1),B", 0, "a later axis splits dim 1 of B,S(1),B, too"),
        ("P,B,B", "P(max),B,B", 0, "P is reduced by its own operation only, not turned into P(max)"),
        ("P,P(max),B", "B,P(max),B", 0, "is partial by two operations, of which the inner one must be reduced first"),
        ("B,P,P(min)", "B,B,P(min)", 1, "of which the inner one must be reduced first"),
        ("B,B,B", "S(5),B,B", 0, "S(5)"),
    ],
)
def test_a_step_that_is_not_possible_is_refused_by_its_law(src: str, dst: str, axis: int, said: str) -> None:
    found = law(src, dst, axis)
    assert found is not None and said in found


def test_an_outer_axis_may_be_partial_by_another_operation() -> None:
    assert law("P(max),P,B", "P(max),B,B", 1) is None


def test_truth_values_have_no_partial_sums() -> None:
    assert law("B,B,B", "P,B,B", 0, TensorType(shape=(8,), dtype=DType.BOOL)) == "truth values have no partial sums"


def test_a_dim_must_suffice_for_all_parts() -> None:
    assert "cannot lie on mesh" in (law("B,B,B", "S(0),B,B", 0, TensorType(shape=(1,), dtype=DType.FLOAT32)) or "")


def step(src: str, dst: str, axis: object = 0, *rest: object) -> LocalStep:
    return LocalStep(Op(id="o", target="regista.boxing", args=(Ref("x"), src, dst, axis, *rest), outputs=("y",), role=Role.FORWARD), (2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [-1, 2, "0"])
def test_a_local_step_names_an_axis_of_the_mesh(axis: object) -> None:
    with pytest.raises(InvalidPlan, match="takes"):
        step("B", "S(0)", axis)


@pytest.mark.parametrize(("src", "dst"), [("S(0)", "B"), ("P", "B"), ("S(0)", "S(1)"), ("P", "S(0)")])
def test_a_step_inside_a_fragment_moves_nothing_between_ranks(src: str, dst: str) -> None:
    found = step(src, dst).of(X, (2, 2), NdSbp.parse(f"{src},B"))
    assert isinstance(found, str) and "moves data between ranks, which a fragment cannot" in found


def test_a_local_step_takes_the_layout_that_it_names() -> None:
    assert step("B", "S(0)", 1).of(X, (2, 2), NdSbp.parse("P,B")) == NdSbp.parse("P,S(0)")
    assert step("B", "S(0)", 1).of(X, (2, 2), NdSbp.parse("B,P")) == "it takes B on axis 1, and is given B,P"
    assert step("B", "B", 0).of(X, (2, 2), NdSbp.parse("B,P")) == NdSbp.parse("B,P")


@pytest.mark.parametrize(("src", "dst"), [("S(0)", "S(0)+1"), ("S(0)+1", "S(0)"), ("S(0)+1", "S(0)+2"), ("S(0)+1", "S(0)+1")])
def test_parts_that_lie_turned_are_shifted(src: str, dst: str) -> None:
    assert law(f"{src},B,B", f"{dst},B,B", 0) is None


@pytest.mark.parametrize(
    ("src", "dst"), [("S(0)+1", "B"), ("B", "S(0)+1"), ("S(0)+1", "S(1)"), ("S(0)", "S(1)+1"), ("P", "S(0)+1"), ("S(0)+1", "P")]
)
def test_parts_that_lie_turned_are_only_shifted(src: str, dst: str) -> None:
    assert "parts that lie turned are only shifted" in (law(f"{src},B,B", f"{dst},B,B", 0) or "")


def test_the_longest_part_must_suffice_and_shorter_ones_need_not() -> None:
    odd = TensorType(shape=(3,), dtype=DType.FLOAT32)
    assert law("S(0),B", "S(0),S(0)", 1, odd, (2, 2)) is None
    assert "cannot lie" in (law("S(0),B", "S(0),S(0)", 1, odd, (2, 3)) or "")


@pytest.mark.parametrize(
    ("layout", "axis", "extent", "after"),
    [("S(0),B", 0, 8, "P,B"), ("S(1),S(0)", 1, 8, "S(1),P"), ("S(0),S(0)", 1, 4, "S(0),P"), ("S(0),S(1)", 1, 6, "S(0),P")],
)
def test_a_part_becomes_a_partial_sum_by_zeros_up_to_the_extent_of_all_parts(layout: str, axis: int, extent: int, after: str) -> None:
    src = layout.split(",")[axis]
    assert step(src, "P", axis, extent).of(X, (2, 2), NdSbp.parse(layout)) == NdSbp.parse(after)
    for wrong in ((extent + 1,), (extent // 2,), (0,), ()):
        found = step(src, "P", axis, *wrong).of(X, (2, 2), NdSbp.parse(layout))
        assert isinstance(found, str) and f"the axis' parts have {extent} together" in found


def test_a_local_step_obeys_the_laws_of_a_step() -> None:
    truth = TensorType(shape=(8, 6), dtype=DType.BOOL)
    assert step("S(0)", "P", 0, 8).of(truth, (2, 2), NdSbp.parse("S(0),B")) == "truth values have no partial sums"
    assert "cannot lie" in str(step("B", "S(0)").of(TensorType(shape=(1,), dtype=DType.FLOAT32), (2, 2), NdSbp.parse("B,B")))
    assert step("B", "P").of(X, (2, 2), NdSbp.parse("B,B")) == NdSbp.parse("P,B")
