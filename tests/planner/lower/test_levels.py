"""Levels of ops: communications on the way to them, and where an op that could stand in several levels stands."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planner.ir.graph import GraphInput, InputKind, LogicalGraph, Op, Ref, Role
from planner.ir.tensor import DType, TensorType
from planner.lower.levels import fragment_keys

NUMBER = TensorType((), DType.FLOAT32)


def graph_of(ops: Mapping[str, tuple[str, ...]], role: Mapping[str, Role]) -> LogicalGraph:
    """Ops that are named as the value that each makes.   ops: op -> the values that it reads; "x" is a state."""
    made = tuple(
        Op(id=name, target="aten.add.Tensor", args=tuple(map(Ref, reads)), outputs=(name,), role=role[name]) for name, reads in ops.items()
    )
    state = GraphInput(value="x", kind=InputKind.PARAMETER, name="x")
    return LogicalGraph(values=dict.fromkeys(("x", *ops), NUMBER), inputs=(state,), ops=made, loss="x", mean_loss="x")


def no_moves(op: Op, value: str) -> int:
    return 0


def levels(ops: Mapping[str, tuple[str, ...]], role: Mapping[str, Role], moved: set[tuple[str, str]]) -> dict[str, int]:
    """Op -> level.   moved: (reader, value) pairs with one communication between them."""
    graph = graph_of(ops, role)
    keys = fragment_keys(graph, dict.fromkeys(ops, 0), lambda op, value: int((op.id, value) in moved), {}, 10**9, {})
    return {name: key.level for name, key in keys.items()}


SHARED = {"part": ("x",), "early": ("x",), "whole": ("part",), "both": ("whole", "early")}


@pytest.mark.parametrize("role", [Role.FORWARD, Role.BACKWARD])
def test_an_op_stands_in_the_fragment_of_its_first_reader(role: Role) -> None:
    """Its result then need not be kept while the communication between the two fragments runs."""
    assert levels(SHARED, dict.fromkeys(SHARED, role), {("whole", "part")}) == {"part": 0, "whole": 1, "early": 1, "both": 1}


def test_an_update_waits_for_no_communication_that_it_does_not_read() -> None:
    assert levels(SHARED, dict.fromkeys(SHARED, Role.UPDATE), {("whole", "part")}) == {"part": 0, "whole": 1, "early": 0, "both": 1}


def test_an_op_stands_before_the_communication_of_what_it_makes() -> None:
    ops = SHARED | {"also": ("early",)}
    moved = {("whole", "part"), ("also", "early")}
    assert levels(ops, dict.fromkeys(ops, Role.FORWARD), moved)["early"] == 0


def test_readers_in_another_part_of_the_step_leave_an_op_where_it_is() -> None:
    role = dict.fromkeys(SHARED, Role.FORWARD) | {"both": Role.BACKWARD}
    assert levels(SHARED, role, {("whole", "part")}) == {"part": 0, "whole": 1, "early": 0, "both": 1}


def test_levels_of_updates_count_from_the_first_update() -> None:
    role = dict.fromkeys(SHARED, Role.UPDATE) | {"part": Role.BACKWARD, "whole": Role.BACKWARD}
    assert levels(SHARED, role, {("whole", "part")}) == {"part": 0, "whole": 1, "early": 0, "both": 0}


def chunks(gradient_bytes: Mapping[str, int], bucket_bytes: int, unit: Mapping[str, str]) -> list[int]:
    """The number of the fragment of each of five backward ops, none of which communicates."""
    ops = dict.fromkeys("abcde", ("x",))
    keys = fragment_keys(
        graph_of(ops, dict.fromkeys(ops, Role.BACKWARD)), dict.fromkeys(ops, 0), no_moves, gradient_bytes, bucket_bytes, unit
    )
    return [keys[name].chunk for name in "abcde"]


def test_a_backward_fragment_ends_when_it_has_completed_a_bucket_of_gradients() -> None:
    assert chunks(dict.fromkeys("abcde", 4), 8, {}) == [0, 0, 1, 1, 2]
    assert chunks(dict.fromkeys("abcde", 4), 9, {}) == [0, 0, 0, 1, 1]
    assert chunks({"b": 8, "d": 7}, 8, {}) == [0, 0, 1, 1, 1]


def test_ops_of_one_unit_share_a_fragment_and_those_of_two_do_not() -> None:
    assert chunks({}, 8, {"a": "first", "b": "first", "c": "second", "e": "second"}) == [0, 0, 1, 1, 1]


def test_a_bucket_begins_empty_in_every_unit() -> None:
    unit = {"a": "first", "b": "second", "c": "second", "d": "second", "e": "second"}
    assert chunks({"a": 7, "b": 4, "c": 3, "d": 1}, 8, unit) == [0, 1, 1, 1, 2]
