"""Fragments as generated functions."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import handmade
import pytest
import torch
from fragments import op_of, task_of

from backend.ops.fragment import compile_fragment, fragment_source
from backend.ops.writable import WritableBlocks
from planner.ir.errors import UnknownOp
from planner.ir.graph import Dt, Ref
from planner.ir.plan import Placement
from planner.ir.tensor import DType

HERE = Placement(id="p", ranks=(0, 1), mesh=(2,))


def test_a_fragment_reads_as_the_docstring_draws_it() -> None:
    task = task_of([op_of("aten.mm.default", (Ref("x"), Ref("w")), "y"), op_of("aten.relu.default", (Ref("y"),), "h")], ["x", "w"], ["h"])
    text, _ = fragment_source(task, HERE, 0)
    assert text.splitlines() == [
        "def fragment(v0, v1):",
        "    v2 = k1(v0, v1)",
        "    del v0, v1",
        "    v3 = k2(v2)",
        "    del v2",
        "    return (v3, )",
    ]


def test_what_is_accumulated_is_written_to_its_slot_where_it_arises() -> None:
    """Past: all gradients of a backward fragment lay on the heap until its end, where they are accumulated, and were copied then."""
    ops = [
        op_of("aten.mm.default", (Ref("x"), Ref("w")), "y"),
        op_of("aten.neg.default", (Ref("x"),), "z"),
        op_of("regista.accumulate", (Ref("y"),), "sum"),
    ]
    text, _ = fragment_source(task_of(ops, ["x", "w"], ["sum"]), HERE, 0, WritableBlocks(slots=(0,)))
    assert text.splitlines()[1:3] == ["    v2 = o2(v0, v1, out=s0)", "    del v1"]
    slot, x, w = torch.zeros(2, 2), torch.ones(2, 2), torch.eye(2)
    (result,) = compile_fragment(task_of(ops, ["x", "w"], ["sum"]), HERE, 0, WritableBlocks(slots=(0,)))(x, w, slot)
    assert result is slot and torch.equal(slot, x)


def test_a_value_with_a_place_in_workspace_is_computed_there() -> None:
    task = task_of([op_of("aten.mm.default", (Ref("x"), Ref("w")), "y"), op_of("aten.neg.default", (Ref("y"),), "h")], ["x", "w"], ["h"])
    place = torch.zeros(2, 2)
    text, _ = fragment_source(task, HERE, 0, workspace={"y": place})
    assert text.splitlines()[1] == "    v2 = o2(v0, v1, out=w1)"
    (result,) = compile_fragment(task, HERE, 0, workspace={"y": place})(torch.ones(2, 2), torch.eye(2))
    assert torch.equal(place, torch.ones(2, 2)) and torch.equal(result, -place)


def test_operators_with_several_outputs_keep_only_the_named_ones() -> None:
    task = task_of([op_of("aten.max.dim", (Ref("x"), 1), None, "where")], ["x"], ["where", "x"])
    x = torch.tensor([[1.0, 5.0], [7.0, 2.0]])
    where, same = compile_fragment(task, HERE, 0)(x)
    assert where.tolist() == [1, 0]
    assert same is x


def test_arguments_that_are_no_literals_arrive_whole() -> None:
    ops = [
        op_of("aten.full.default", ((2, 2), -math.inf), "low", dtype=Dt(DType.FLOAT64)),
        op_of("aten.cat.default", ((Ref("low"), Ref("low")), 1), "wide"),
    ]
    (wide,) = compile_fragment(task_of(ops, [], ["wide"]), HERE, 0)()
    assert wide.shape == (2, 4)
    assert wide.dtype is torch.float64
    assert bool((wide == -math.inf).all())


def test_boxing_inside_a_fragment_uses_the_ranks_coordinate() -> None:
    ops = [op_of("regista.boxing", (Ref("x"), "B", "S(0)", 0), "part"), op_of("regista.boxing", (Ref("part"), "S(0)", "P", 0, 3), "padded")]
    x = torch.arange(3.0)
    parts = [compile_fragment(task_of(ops, ["x"], ["part", "padded"]), HERE, rank)(x) for rank in (0, 1)]
    assert [p[0].tolist() for p in parts] == [[0.0, 1.0], [2.0]]
    assert [p[1].tolist() for p in parts] == [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]


def test_values_die_after_their_last_use() -> None:
    alive: list[int] = []
    refs: list[weakref.ref[torch.Tensor]] = []

    def spy(value: torch.Tensor) -> torch.Tensor:
        alive.append(sum(r() is not None for r in refs))
        result = value + 1
        refs.append(weakref.ref(result))
        return result

    ops = [op_of("aten.neg.default", (Ref(f"v{i}"),), f"v{i + 1}") for i in range(4)]
    text, scope = fragment_source(task_of(ops, ["v0"], ["v4"]), HERE, 0)
    scope |= {name: spy for name in scope if name.startswith("k")}
    exec(text, scope)
    scope["fragment"](torch.zeros(1))  # type: ignore[operator]
    assert alive == [0, 1, 1, 1]


def test_an_unknown_target_is_refused_when_compiling() -> None:
    with pytest.raises(UnknownOp):
        compile_fragment(task_of([op_of("aten.no_such_op.default", (Ref("x"),), "y")], ["x"], ["y"]), HERE, 0)


def test_a_value_read_twice_is_one_value() -> None:
    task = handmade.data_parallel().task["update.w1"]
    doubled = replace(task, reads=(*task.reads, task.reads[0]))
    g, w = torch.ones(2), torch.zeros(2)
    assert torch.equal(*(compile_fragment(t, HERE, 0)(*values)[0] for t, values in ((task, (g, w)), (doubled, (g, w, g)))))
