"""Which op is which step of an attention around a ring, by its literals and by what it reads (SEMANTICS 10.5), without a Plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.ir.graph import Arg, Op, Ref, Role
from planner.ir.tensor import DType, TensorType
from planner.opset.layers import BLOCK, BLOCK_BACKWARD, BLOCK_KEYS, BLOCK_SUMS
from planner.validate.values.rings import AttentionSteps

HALF, FULL = DType.BFLOAT16, DType.FLOAT32
Q, K, V = (TensorType((2, 4, 24, 16), HALF), TensorType((2, 4, 24, 16), HALF), TensorType((2, 4, 24, 12), HALF))
OUT, LSE = TensorType((2, 4, 24, 12), HALF), TensorType((2, 4, 24), FULL)
NAMES = ("q", "k", "v", "out", "lse", "g", "dq", "dk", "dv")
GIVEN = dict(zip(range(9), (Q, K, V, OUT, LSE, OUT, Q, K, V), strict=True))
LITERALS = (True, 0.25)


def op(target: str, *args: Arg, kwargs: tuple[tuple[str, Arg], ...] = ()) -> Op:
    return Op(id=target, target=target, args=args, kwargs=kwargs, outputs=("x",), role=Role.FORWARD)


def refs(*numbers: int) -> tuple[Ref, ...]:
    return tuple(Ref(str(number)) for number in numbers)


class Program:
    """An attention and its gradient on the values 0 to 8, besides others on the same values that stand before it."""

    def __init__(self, *, dtype: DType = HALF, before: tuple[tuple[Arg, Arg], ...] = (), with_keys_gradient: bool = True) -> None:
        self.types = {number: TensorType(type_.shape, dtype) if type_.dtype is HALF else type_ for number, type_ in GIVEN.items()}
        self.known: dict[Any, int] = {}
        self.literals = (*before, LITERALS)
        self.with_keys_gradient = with_keys_gradient
        self.steps = AttentionSteps(self.number, self.types.__getitem__, self.attentions).steps

    def number(self, key: Any, type_: TensorType | None) -> int:
        number = self.known.setdefault(key, 100 + len(self.known))
        assert type_ is not None
        assert self.types.setdefault(number, type_) == type_
        return number

    def attentions(self, target: str, operands: tuple[int, ...]) -> list[Any]:
        found: list[Any] = []
        for place, literals in enumerate(self.literals):
            last = place == len(self.literals) - 1
            if target == "regista.attention" and operands == (0, 1, 2):
                made = op(target, *refs(0, 1, 2), None, *literals)
                found.append((made, (3, 4) if last else (60 + place, 70 + place), (self.types[3], LSE)))
            if target == "regista.attention_backward" and operands == (5, 0, 1, 2, 3, 4):
                made = op(target, *refs(5, 0, 1, 2, 3, 4), None, *literals)
                types = (self.types[6], self.types[7], self.types[8] if self.with_keys_gradient else None)
                found.append((made, (6, 7, 8) if last else (80 + place, 82 + place, 84 + place), types))
        return found

    def forward(self, turn: int, parts: int = 3, before: tuple[int, ...] = (), **changes: Any) -> Any:
        made, operands = block(turn, parts, before)
        return self.steps(changed(made, **changes), operands)

    def backward(self, turn: int, parts: int = 3, before: tuple[int, ...] = (), **changes: Any) -> Any:
        made, operands = backward_block(turn, parts, before)
        return self.steps(changed(made, **changes), operands)


def changed(made: Op, kwargs: tuple[tuple[str, Arg], ...] = (), **literals: Any) -> Op:
    """Literals by their places from the end, as in ``at_5=2``."""
    args = list(made.args)
    for name, value in literals.items():
        args[-int(name.removeprefix("at_"))] = value
    return replace(made, args=tuple(args), kwargs=kwargs)


def block(turn: int, parts: int, before: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    state = refs(*before) if before else (None, None)
    return op(BLOCK, *refs(0, 1, 2), *state, *LITERALS, turn, parts, 24 // parts, OUT.shape, (2,)), (0, 1, 2, *before)


def backward_block(turn: int, parts: int, before: tuple[int, ...]) -> tuple[Op, tuple[int, ...]]:
    state = refs(*before) if before else (None,)
    args = (*refs(5, 0, 1, 2, 3, 4), *state, *LITERALS, turn, parts, 24 // parts, Q.shape, (2,))
    return op(BLOCK_BACKWARD, *args), (5, 0, 1, 2, 3, 4, *before)


@pytest.mark.parametrize(("dtype", "wide"), [(HALF, FULL), (FULL, FULL), (DType.FLOAT64, DType.FLOAT64)])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_last_step_makes_what_the_attention_makes_and_those_before_what_they_have_merged(parts: int, dtype: DType, wide: DType) -> None:
    program = Program(dtype=dtype)
    before: tuple[int, ...] = ()
    seen = set()
    for turn in range(parts):
        ((whole, types, made),) = program.forward(turn, parts, before)
        assert whole == changed(block(turn, parts, before)[0], at_1=()), "the op on the whole tensors"
        if turn < parts - 1:
            assert (
                types == (TensorType((2, 4, 24, 12), wide), TensorType((2, 4, 24), wide)) == tuple(program.types[number] for number in made)
            )
        seen.add(made)
        before = made
    assert before == (3, 4) and types == (program.types[3], LSE) and len(seen) == parts


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_gradients_of_steps_add_up_to_those_of_the_attention(parts: int) -> None:
    program = Program()
    before: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()
    for turn in range(parts):
        ((whole, types, made),) = program.backward(turn, parts, before)
        assert whole == changed(backward_block(turn, parts, before)[0], at_1=())
        assert types == (Q if turn == parts - 1 else TensorType(Q.shape, FULL), K, V)
        dq, *shares = made
        if turn == 0:
            sums = tuple(shares)
        else:
            operands = (sums[0], shares[0], sums[1], shares[1])
            added = op(BLOCK_SUMS, *refs(*operands), turn, parts)
            ((same, types, after),) = program.steps(added, operands)
            assert same == added and types == (K, V)
            assert not program.steps(op(BLOCK_SUMS, *refs(*operands), turn + 1, parts), operands)
            assert not program.steps(op(BLOCK_SUMS, *refs(*operands), turn, parts + 1), operands)
            assert not program.steps(op(BLOCK_SUMS, *refs(*operands), "1", parts), operands)
            assert not program.steps(op(BLOCK_SUMS, *refs(*operands), turn, "3"), operands)
            assert not program.steps(added, (operands[2], operands[3], operands[0], operands[1]))
            assert not program.steps(replace(added, args=(*added.args, 0)), operands)
            assert not program.steps(replace(added, target="made.up"), operands)
            assert not program.steps(replace(added, kwargs=(("k", 0),)), operands)
            sums = after
        before = (dq,)
    assert (before, sums) == ((6,), (7, 8))


def test_keys_and_values_once_more_are_what_they_are() -> None:
    program = Program()
    again = op(BLOCK_KEYS, *refs(1, 2, 9))
    assert program.steps(again, (1, 2, 9)) == [(again, (K, V), (1, 2))]
    assert not program.steps(op(BLOCK_KEYS, *refs(1, 2)), (1, 2))
    assert not program.steps(op(BLOCK_KEYS, *refs(1, 2, 9), 0), (1, 2, 9))
    assert not program.steps(op(BLOCK_KEYS, *refs(1, 2), None), (1, 2))
    assert not program.steps(op("made.up", *refs(1, 2, 9)), (1, 2, 9))


WRONG: dict[str, dict[str, Any]] = {
    "not causal": {"at_7": False},
    "causal as a number": {"at_7": 1},
    "another scale": {"at_6": 0.5},
    "a step that is none": {"at_5": -1},
    "a step behind the last": {"at_5": 3},
    "a step as a text": {"at_5": "0"},
    "parts as a text": {"at_4": "3"},
    "other parts": {"at_4": 2},
    "one part": {"at_4": 1, "at_3": 24},
    "another extent": {"at_3": 12},
    "an extent as a text": {"at_3": "8"},
    "another whole": {"at_2": (2, 4, 24, 17)},
    "a literal by keyword": {"kwargs": (("k", 1),)},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_step_with_another_literal_is_none(name: str) -> None:
    for ask in (Program().forward, Program().backward):
        assert len(ask(0)) == 1
        assert ask(0, **WRONG[name]) == []


def test_a_scale_of_another_type_is_another_scale() -> None:
    program = Program()
    program.literals = ((True, 1.0),)
    assert program.forward(0, at_6=1.0) and not program.forward(0, at_6=1)
    assert program.forward(0, at_6=1.0) and not program.forward(0, at_6=True)


def test_the_first_step_reads_no_results_and_the_others_those_of_the_one_before() -> None:
    program = Program()
    ((_, _, first),) = program.forward(0)
    ((_, _, second),) = program.forward(1, before=first)
    assert program.forward(2, before=second)
    for turn, before in ((0, first), (1, ()), (1, second), (1, first[::-1]), (2, first), (2, ()), (1, (3, 4))):
        assert program.forward(turn, before=before) == [], (turn, before)
    ((_, _, (dq, *_)),) = program.backward(0)
    ((_, _, (further, *_)),) = program.backward(1, before=(dq,))
    assert program.backward(2, before=(further,))
    for turn, before in ((0, (dq,)), (1, ()), (1, (further,)), (2, (dq,)), (1, (6,))):
        assert program.backward(turn, before=before) == [], (turn, before)


def test_what_a_step_reads_stands_where_its_results_do() -> None:
    """Operands without their places: the numbers say that there is a state before, the arguments that there is none."""
    program = Program()
    ((_, _, first),) = program.forward(0)
    made, _ = block(1, 3, first)
    assert program.steps(made, (0, 1, 2, *first))
    moved = replace(made, args=(*refs(0, 1, 2), None, None, *made.args[5:]))
    assert not program.steps(moved, (0, 1, 2, *first))
    ((_, _, (dq, *_)),) = program.backward(0)
    made, _ = backward_block(1, 3, (dq,))
    assert program.steps(made, (5, 0, 1, 2, 3, 4, dq))
    assert not program.steps(replace(made, args=(*made.args[:6], None, *made.args[7:])), (5, 0, 1, 2, 3, 4, dq))


def test_ops_of_another_form_or_on_other_values_are_no_steps() -> None:
    program = Program()
    made, operands = block(0, 3, ())
    backward, their_operands = backward_block(0, 3, ())
    assert program.steps(made, operands) and program.steps(backward, their_operands)
    assert not program.steps(made, (1, 0, 2)) and not program.steps(backward, (5, 1, 0, 2, 3, 4))
    assert not program.steps(made, (0, 1)) and not program.steps(made, (0, 1, 2, 3))
    assert not program.steps(backward, their_operands[:5]) and not program.steps(backward, (*their_operands, 9, 9))
    for one, values in ((made, operands), (backward, their_operands)):
        assert not program.steps(replace(one, args=(None, *one.args)), values)
        assert not program.steps(replace(one, target="made.up"), values)
        assert not program.steps(replace(one, target=BLOCK_SUMS), values)
    assert program.steps(op("made.up"), ()) == []


def test_the_extents_of_queries_keys_and_values_are_those_of_all_parts() -> None:
    for number in (0, 1, 2):
        program = Program()
        longer = program.types[number]
        program.types[number] = TensorType((*longer.shape[:2], 48, longer.shape[3]), HALF)
        whole = (*program.types[0].shape[:3], 12)
        assert program.forward(0, at_2=whole) == []
        assert program.backward(0, at_2=program.types[0].shape) == []


def test_attentions_before_the_one_that_is_meant_do_not_hide_it() -> None:
    program = Program(before=((False, 0.25), (True, 0.5)))
    ((_, _, first),) = program.forward(0)
    ((_, _, second),) = program.forward(1, before=first)
    ((_, _, last),) = program.forward(2, before=second)
    assert last == (3, 4)
    ((_, _, made),) = program.backward(0)
    ((_, _, made),) = program.backward(1, before=made[:1])
    ((_, _, made),) = program.backward(2, before=made[:1])
    assert made[0] == 6


def test_a_gradient_that_nobody_reads_is_of_no_ring() -> None:
    assert Program().backward(0)
    assert Program(with_keys_gradient=False).backward(0) == []
