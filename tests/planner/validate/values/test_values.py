"""When two values have one number (SEMANTICS 11.1 to 11.3), and when two ops have the same arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest

from planner.ir.graph import ACCUMULATE, Arg, Dt, GraphInput, InputKind, LogicalGraph, Op, Ref, Role
from planner.ir.tensor import DType, TensorType
from planner.validate.values.literals import arguments_key, operand_places
from planner.validate.values.numbers import ValueNumbers

X, WIDE = TensorType((4,), DType.FLOAT32), TensorType((4,), DType.FLOAT64)
ROW = TensorType((1,), DType.FLOAT32)
SCALAR, WIDE_SCALAR = TensorType((), DType.FLOAT32), TensorType((), DType.FLOAT64)
NORMS, OTHER_NORMS = "regista.add_norms", "regista.join_norms"
ADD, SUB = "aten.add.Tensor", "aten.sub.Tensor"


def op(target: str, *args: Arg, out: str = "out", draw: int | None = None, **kwargs: Arg) -> Op:
    return Op(id=out, target=target, args=args, kwargs=tuple(kwargs.items()), outputs=(out,), role=Role.FORWARD, draw=draw)


def numbers(*ops: Op, types: dict[str, TensorType] | None = None) -> ValueNumbers:
    """Of a graph whose inputs are a, b, c, d."""
    given = {value: (types or {}).get(value, X) for value in "abcd"}
    made = {value: (types or {}).get(value, X) for one in ops for value in one.outputs if value is not None}
    inputs = tuple(GraphInput(value=value, kind=InputKind.BATCH, name=f"input.{value}") for value in given)
    return ValueNumbers(LogicalGraph(values=given | made, inputs=inputs, ops=ops, loss="a", mean_loss="a"))


def tree(text: str, target: str = ADD) -> list[Op]:
    """Ops that compute a text such as ((a+b)+c), each sum from the left; the last is called by the text; ~ accumulates."""
    made: list[Op] = []

    def compute(part: str) -> str:
        if len(part) == 1:
            return part
        if part.startswith("~"):
            made.append(op(ACCUMULATE, Ref(compute(part[1:])), out=part))
            return part
        depth, at = 0, 0
        for place, letter in enumerate(part):
            depth += (letter == "(") - (letter == ")")
            if letter == "+" and depth == 1:
                at = place
        left, right = compute(part[1:at]), compute(part[at + 1 : -1])
        made.append(op(target, Ref(left), Ref(right), out=part))
        return part

    compute(text)
    return list({one.id: one for one in made}.values())


def of_texts(*texts: str) -> list[int]:
    ops = {one.id: one for text in texts for one in tree(text)}
    found = numbers(*ops.values())
    return [found.of[text] for text in texts]


# --- arguments ---------------------------------------------------------------------------------------------------------------

DIFFERENT: Sequence[Arg] = (
    None, True, False, 0, 1, 0.0, 1.0, -1, "1", "True", "", Ref("a"), Ref("b"), Dt(DType.FLOAT32), Dt(DType.FLOAT64), (), (None,), (1,), (1.0,),
    ("1",), (True,), (1, 2), (2, 1), ((1,), 2), (1, (2,)), (Ref("a"),), (Ref("b"),), (Ref("a"), Ref("b")), (Ref("b"), Ref("a")),
)  # fmt: skip


def key(one: Op) -> object:
    return arguments_key(one, {"a": 0, "b": 1}.__getitem__)


def test_arguments_that_differ_have_keys_that_differ_and_equal_ones_the_same() -> None:
    for one, other in combinations(DIFFERENT, 2):
        assert key(op("t", one)) != key(op("t", other)), (one, other)
        assert key(op("t", k=one)) != key(op("t", k=other)), (one, other)
    for one in DIFFERENT:
        assert key(op("t", one)) == key(op("t", one))
        assert key(op("t", one)) != key(op("t", k=one)) != key(op("t", other=one))
        assert key(op("t", one)) != key(op("t", one, one)) != key(op("t", one, k=one))
    hash(key(op("t", *DIFFERENT)))


def test_operands_are_numbered_by_their_first_occurrence() -> None:
    assert operand_places(op("t", Ref("b"), Ref("a"), (Ref("b"), Ref("c")), k=Ref("a"))) == (0, 1, 0, 2, 1)


# --- one number, two numbers -------------------------------------------------------------------------------------------------


def test_what_is_computed_alike_has_one_number_whatever_it_is_called() -> None:
    found = numbers(
        op("relu", Ref("a"), out="x"), op("relu", Ref("a"), out="y"), op("neg", Ref("x"), out="z"), op("neg", Ref("y"), out="w")
    )
    assert found.of["x"] == found.of["y"] and found.of["z"] == found.of["w"] != found.of["x"]
    assert found.shown(found.of["y"]) == "x", "messages name the first"
    assert found.type_of(found.of["x"]) == X


@pytest.mark.parametrize(
    "other",
    [
        op("neg", Ref("a"), Ref("b"), 2),
        op("mul", Ref("b"), Ref("a"), 2),
        op("mul", Ref("a"), Ref("a"), 2),
        op("mul", Ref("a"), Ref("b"), 3),
        op("mul", Ref("a"), Ref("b"), 2.0),
        op("mul", Ref("a"), Ref("b")),
        op("mul", Ref("a"), Ref("b"), k=2),
        op("mul", Ref("a"), Ref("b"), 2, draw=1),
    ],
    ids=str,
)
def test_another_target_operand_order_literal_or_draw_makes_another_value(other: Op) -> None:
    found = numbers(op("mul", Ref("a"), Ref("b"), 2, out="first"), other)
    assert found.of["first"] != found.of["out"]


def test_inputs_of_another_kind_or_name_are_other_values_and_results_of_one_op_too() -> None:
    kinds = [InputKind.BATCH, InputKind.STEP_INPUT, InputKind.PARAMETER]
    inputs = tuple(GraphInput(value=f"{kind.value}{name}", kind=kind, name=name) for kind in kinds for name in ("p", "q"))
    both = Op(id="o", target="split", args=(Ref(inputs[0].value),), outputs=("one", None, "two"), role=Role.FORWARD)
    values = dict.fromkeys([*(given.value for given in inputs), "one", "two"], X)
    found = ValueNumbers(LogicalGraph(values=values, inputs=inputs, ops=(both,), loss="one", mean_loss="one"))
    assert len(set(found.of.values())) == len(values)
    (known,) = found.ops_on(both, (found.of[inputs[0].value],))
    assert (known.results[0], known.results[2]) == (found.of["one"], found.of["two"])
    assert known.form.outputs == (X, None, X) and known.form.inputs == (X,)


def test_ops_of_a_plan_are_those_of_the_program_on_the_same_values_with_the_same_draw() -> None:
    drawn = op("dropout", Ref("a"), 0.5, out="x", draw=3)
    found = numbers(drawn, op("dropout", Ref("a"), 0.25, out="y", draw=3), op("dropout", Ref("b"), 0.5, out="z", draw=4))
    a, b = found.of["a"], found.of["b"]
    assert [known.results for known in found.ops_on(drawn, (a,))] == [(found.of["x"],), (found.of["y"],)]
    assert found.ops_on(drawn, (b,)) == [] == found.ops_on(op("dropout", Ref("a"), 0.5, draw=4), (a,))


def test_ops_of_one_form_share_it_and_of_another_type_do_not() -> None:
    ops = [op("relu", Ref("a"), out="x"), op("relu", Ref("b"), out="y"), op("relu", Ref("c"), out="z"), op("relu", Ref("d"), 1, out="w")]
    found = numbers(*ops, types={"c": WIDE, "z": WIDE})
    forms = [found.ops_on(one, (found.of[one.inputs[0]],))[0].form for one in ops]
    assert forms[0] is forms[1] and len({id(form) for form in forms}) == 3


# --- the laws of sums --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "equal",
    [
        ("(a+b)", "(b+a)"),
        ("~(a+b)", "(~a+~b)", "(~b+~a)", "~(b+a)"),
        ("~(a+a)", "(~a+~a)"),
        ("~((a+b)+(a+c))", "~((a+a)+(c+b))", "((~a+~b)+(~c+~a))", "(~(a+c)+~(b+a))", "(~((a+b)+a)+~c)"),
        ("~((a+b)+(a+b))", "(~(a+b)+~(a+b))", "((~a+~a)+(~b+~b))"),
        ("~(((a+b)+(a+b))+(a+b))", "(~(a+(a+a))+~((b+b)+b))"),
        ("~a",),
    ],
)
def test_sums_of_equal_terms_are_equal(equal: tuple[str, ...]) -> None:
    assert len(set(of_texts(*equal))) == 1


@pytest.mark.parametrize(
    "different",
    [
        ("(a+b)", "(a+c)", "(b+b)", "(a+a)"),
        ("((a+b)+c)", "(a+(b+c))"),  # equality is of accumulated sums alone
        ("~a", "~b", "~(a+b)", "~(a+a)", "~((a+a)+b)", "~((a+b)+b)", "~((a+b)+c)", "(a+b)"),
        ("(~a+b)", "(~a+~b)", "(a+~b)"),
        ("~a", "a"),
    ],
)
def test_sums_of_other_terms_are_others(different: tuple[str, ...]) -> None:
    assert len(set(of_texts(*different))) == len(different)


def test_a_sum_with_a_literal_or_of_two_types_is_an_op_like_another() -> None:
    scaled = numbers(op(ADD, Ref("a"), Ref("b"), out="x", alpha=2), op(ADD, Ref("b"), Ref("a"), out="y", alpha=2))
    assert scaled.of["x"] != scaled.of["y"]
    literal = numbers(op(ADD, Ref("a"), 2, out="x"), op(ADD, Ref("a"), 3, out="y"))
    assert literal.of["x"] != literal.of["y"]
    both = numbers(op(ADD, Ref("a"), Ref("b"), 2, out="x"), op(ADD, Ref("b"), Ref("a"), 2, out="y"))
    assert both.of["x"] != both.of["y"]
    broadcast = numbers(op(ADD, Ref("a"), Ref("d"), out="x"), op(ADD, Ref("d"), Ref("a"), out="y"), types={"d": ROW})
    assert broadcast.of["x"] != broadcast.of["y"]
    other = numbers(op(SUB, Ref("a"), Ref("b"), out="x"), op(SUB, Ref("b"), Ref("a"), out="y"))
    assert other.of["x"] != other.of["y"]


def test_what_accumulates_is_pending_until_all_acts_of_a_step_have_filled_a_block() -> None:
    accumulates = op(ACCUMULATE, Ref("a"), out="mean")
    found = numbers(accumulates)
    (made,) = found.ops_on(accumulates, (found.of["a"],))
    (pending,) = made.results
    assert found.settled(pending) == found.of["mean"] != pending
    assert found.settled(found.of["mean"]) is None is found.settled(found.of["a"])
    assert found.type_of(pending) == X == found.type_of(found.of["mean"]) and made.form.outputs == (X,)
    assert found.shown(pending) == "mean of a single micro-batch"


def test_a_plan_may_have_sums_that_the_program_does_not_have() -> None:
    found = numbers(*tree("~((a+b)+c)"))
    one = op(ADD, Ref("a"), Ref("c"))
    (made,) = found.ops_on(one, (found.of["a"], found.of["c"]))
    assert found.type_of(made.results[0]) == X and made.form.inputs == (X, X)
    assert found.shown(made.results[0]) == "a value that the program does not have"


def joined(found: ValueNumbers, target: str, *operands: int) -> int:
    (made,) = found.ops_on(op(target, *(Ref(str(number)) for number in operands)), operands)
    return made.results[0]


@pytest.mark.parametrize("target", [NORMS, OTHER_NORMS])
def test_measures_join_in_any_order_and_in_any_number_of_steps(target: str) -> None:
    found = numbers(types=dict.fromkeys("abcd", SCALAR))
    a, b, c, d = (found.of[value] for value in "abcd")
    whole = joined(found, target, a, b, c, d)
    for one, two, three, four in permutations((a, b, c, d)):
        assert joined(found, target, one, two, three, four) == whole
        assert joined(found, target, joined(found, target, one, two), joined(found, target, three, four)) == whole
        assert joined(found, target, joined(found, target, one, two, three), four) == whole
    others = {joined(found, target, a, b), joined(found, target, a, a, b, c, d), joined(found, target, a, a, b), joined(found, target, a)}
    assert len(others | {whole}) == 5


def test_joins_of_two_kinds_do_not_mix_and_the_widest_type_is_the_results() -> None:
    found = numbers(types=dict.fromkeys("abc", SCALAR) | {"d": WIDE_SCALAR})
    a, b, c, d = (found.of[value] for value in "abcd")
    mixed = joined(found, NORMS, joined(found, OTHER_NORMS, a, b), c)
    assert len({mixed, joined(found, NORMS, a, b, c), joined(found, OTHER_NORMS, a, b, c)}) == 3
    assert found.type_of(joined(found, NORMS, a, d)) == found.type_of(joined(found, NORMS, d, a)) == WIDE_SCALAR
    assert found.type_of(joined(found, NORMS, a, b)) == SCALAR
