"""Attention around a ring is proven step by step; one whose steps do something else is refused (SEMANTICS 10.5, 11.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from matrix import program, read_plan

from planner.ir.errors import PlanDoesNotComputeProgram, RegistaError
from planner.ir.graph import Op
from planner.ir.plan import Boxing, Fragment, Plan
from planner.ir.sbp import NdSbp, S, Split
from planner.opset.layers import BLOCK, BLOCK_BACKWARD, BLOCK_SUMS
from planner.validate import validate


@cache
def ring() -> Plan:
    return read_plan("llama3", "context_ring4", "fp32")


def with_op(target: str, edit: Callable[[Op], Op], number: int = 1) -> Plan:
    """The ring's Plan with another op in place of the first op of a target that stands as step ``number``."""
    turn = -2 if target == BLOCK_SUMS else -5
    changed = False
    tasks = []
    for task in ring().tasks:
        if isinstance(task.body, Fragment):
            ops = []
            for op in task.body.ops:
                if not changed and op.target == target and op.args[turn] == number:
                    op, changed = edit(op), True
                ops.append(op)
            task = replace(task, body=replace(task.body, ops=tuple(ops)))
        tasks.append(task)
    assert changed
    return replace(ring(), tasks=tuple(tasks))


def with_literal(position: int, value: object) -> Callable[[Op], Op]:
    return lambda op: replace(op, args=tuple(value if k == position % len(op.args) else arg for k, arg in enumerate(op.args)))  # type: ignore[misc]


def with_exchanged(first: int, second: int) -> Callable[[Op], Op]:
    def edited(op: Op) -> Op:
        args = list(op.args)
        args[first], args[second] = args[second], args[first]
        return replace(op, args=tuple(args))

    return edited


def shifted_twice() -> Plan:
    """The first shift of keys goes two places instead of one."""
    (shift, *_) = [task for task in ring().tasks if isinstance(task.body, Boxing) and "shift.fwd" in task.id]
    assert isinstance(shift.body, Boxing)
    dst = shift.body.dst
    further = dst.replace(0, Split(dst[0].dim, 2))  # type: ignore[union-attr]
    made = {write.regst for write in shift.writes}
    tasks = tuple(replace(t, body=replace(shift.body, dst=further)) if t.id == shift.id else t for t in ring().tasks)
    regsts = tuple(
        replace(r, tensors=tuple(replace(tensor, sbp=further) for tensor in r.tensors)) if r.id in made else r for r in ring().regsts
    )
    return replace(ring(), tasks=tasks, regsts=regsts)


def test_the_ring_of_the_matrix_is_proven() -> None:
    assert not validate(ring(), program("llama3")).not_checked


@pytest.mark.parametrize(
    ("what", "edited"),
    [
        ("a step says that it is another one", lambda: with_op(BLOCK, with_literal(-5, 2))),
        ("a step is not causal", lambda: with_op(BLOCK, with_literal(-7, False))),
        ("a step has another scale", lambda: with_op(BLOCK, with_literal(-6, 0.5))),
        ("a step forgets what it has seen", lambda: with_op(BLOCK, lambda op: with_literal(3, None)(with_literal(4, None)(op)))),
        ("the blocks are of another ring", lambda: with_op(BLOCK, with_literal(-4, 2))),
        ("the last step stands too early", lambda: with_op(BLOCK, with_literal(-5, 3), number=2)),
        ("keys and values are exchanged", lambda: with_op(BLOCK, with_exchanged(1, 2))),
        ("backward, a step says that it is another one", lambda: with_op(BLOCK_BACKWARD, with_literal(-5, 2))),
        ("backward, keys and values are exchanged", lambda: with_op(BLOCK_BACKWARD, with_exchanged(2, 3))),
        ("backward, a step forgets dQ of those before", lambda: with_op(BLOCK_BACKWARD, with_literal(6, None))),
        ("dK is added to dV", lambda: with_op(BLOCK_SUMS, with_exchanged(1, 3))),
        ("a sum says that it is another one", lambda: with_op(BLOCK_SUMS, with_literal(-2, 2))),
        ("a shift goes too far", shifted_twice),
    ],
)
def test_a_ring_that_computes_something_else_is_refused(what: str, edited: Callable[[], Plan]) -> None:
    with pytest.raises(PlanDoesNotComputeProgram):
        validate(edited(), program("llama3"))


def test_turned_parts_lie_further_around_the_axis_and_are_only_shifted() -> None:
    turned = NdSbp.parse("S(0)+1")
    assert [turned.region((8,), (4,), (place,))[0] for place in range(4)] == [(6, 2), (0, 2), (2, 2), (4, 2)]
    assert str(turned) == "S(0)+1" and turned.entries == (Split(0, 1),) and NdSbp.parse("S(0)").entries == (S(0),)
    with pytest.raises(RegistaError, match=r"4 parts that are turned are equal, and 9 is no multiple"):
        turned.region((9,), (4,), (0,))
