"""Updates as a worker performs them: one call for many parameters, in place, the bits of one call each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.ops.optimizer import AdamNumbers, adam_in_place, fuse_adams, sgd_in_place, update_call
from planner.frontend.optim.updates import adam_update, adamw_update, sgd_update
from planner.ir.graph import Op, Ref, Role

HYPER = (1e-3, 0.9, 0.999, 1e-8, 0.01)
NUMBERS = AdamNumbers(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
SLOTS = ("w", "g", "m", "v", "t")


def adamw(name: str, hyper: tuple[float, ...] = HYPER, grad: str = "") -> Op:
    args = (Ref(f"w{name}"), Ref(grad or f"g{name}"), Ref(f"m{name}"), Ref(f"v{name}"), Ref(f"t{name}"), *hyper)
    outputs = tuple(f"new_{slot}{name}" for slot in "wmvt")
    return Op(id=f"op{name}", target="regista.adamw", args=args, kwargs=(), outputs=outputs, role=Role.UPDATE)


def relu(read: str, made: str) -> Op:
    return Op(id=f"relu.{made}", target="aten.relu.default", args=(Ref(read),), kwargs=(), outputs=(made,), role=Role.UPDATE)


def given_to(*names: str) -> frozenset[str]:
    return frozenset(f"{slot}{name}" for slot in SLOTS for name in names)


def test_updates_with_the_same_constants_are_one_op_at_the_place_of_the_last() -> None:
    other = (1e-2, *HYPER[1:])
    ops = (adamw("a"), adamw("b"), adamw("c", other), relu("x", "y"), adamw("d"))
    merged = fuse_adams(ops, given_to(*"abcd") | {"x"})
    assert [op.id for op in merged] == ["opc", "relu.y", "opd"]
    assert merged[2].inputs == (*adamw("a").inputs, *adamw("b").inputs, *adamw("d").inputs)
    assert merged[2].outputs == (*adamw("a").outputs, *adamw("b").outputs, *adamw("d").outputs)
    assert merged[2].args[-7:] == (*HYPER, True, False) and merged[0].args[-7:] == (*other, True, False)


def test_an_update_of_a_gradient_computed_here_stays_where_it_is_so_that_the_gradient_dies_there() -> None:
    ops = (adamw("a"), relu("x", "gb"), adamw("b"), relu("x", "gc"), adamw("c"))
    merged = fuse_adams(ops, (given_to(*"abc") | {"x"}) - {"gb", "gc"})
    assert [op.id for op in merged] == ["opa", "relu.gb", "opb", "relu.gc", "opc"]


def test_what_reads_an_updates_result_comes_behind_the_one_op() -> None:
    ops = (adamw("a"), relu("new_wa", "y"), relu("y", "z"), relu("x", "u"), adamw("b"), relu("new_wb", "t"))
    merged = fuse_adams(ops, given_to(*"ab") | {"x"})
    assert [op.id for op in merged] == ["relu.u", "opb", "relu.y", "relu.z", "relu.t"]


def test_an_update_by_what_another_made_comes_behind_it() -> None:
    ops = (adamw("a"), relu("new_wa", "gc"), adamw("c"), relu("new_wc", "y"), adamw("b"))
    merged = fuse_adams(ops, (given_to(*"abc")) - {"gc"})
    assert [op.id for op in merged] == ["opb", "relu.gc", "opc", "relu.y"]
    assert merged[0].outputs == (*adamw("a").outputs, *adamw("b").outputs)


def values_of(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype], rng: torch.Generator) -> list[Tensor]:
    values: list[Tensor] = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        values += [torch.rand(shape, generator=rng).to(dtype) for _ in range(4)]
        values.append(torch.randint(0, 5, (), generator=rng).float())
    return values


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 5), max_size=2), st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 99),
)
def test_one_call_for_many_parameters_gives_the_bits_of_one_call_each(kinds: list[tuple[list[int], torch.dtype]], seed: int) -> None:
    values = values_of([tuple(s) for s, _ in kinds], [d for _, d in kinds], torch.Generator().manual_seed(seed))
    apart = [value.clone() for value in values]
    held = [value.data_ptr() for n, value in enumerate(values) if n % 5 != 1]
    got = adam_in_place([True] * len(values), NUMBERS)(*values)
    wanted = [new for at in range(0, len(apart), 5) for new in adam_in_place([True] * 5, NUMBERS)(*apart[at : at + 5])]
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert [value.data_ptr() for value in got] == held


@given(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 99))
def test_adamw_computes_what_the_op_means_and_writes_only_to_what_it_owns(own: list[bool], seed: int) -> None:
    values = values_of([(3, 4)], [torch.float64], torch.Generator().manual_seed(seed))
    before = [value.clone() for value in values]
    wanted = adamw_update(*values, *HYPER)
    got = adam_in_place(own, NUMBERS)(*values)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
    for n, (value, old) in enumerate(zip(values, before, strict=True)):
        assert torch.equal(value, old) != (own[n] and n != 1)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_updates_of_adam_are_one_op_of_what_each_of_them_means(amsgrad: bool, decoupled: bool, weight_decay: float) -> None:
    slots = (*SLOTS, "x") if amsgrad else SLOTS
    numbers = (1e-2, 0.9, 0.99, 1e-8, weight_decay, decoupled)

    def adam(name: str) -> Op:
        operands = tuple(Ref(f"{slot}{name}") for slot in slots)
        made = tuple(f"new_{slot}{name}" for slot in slots if slot != "g")
        args = (*operands, *(None,) * (not amsgrad), *numbers)
        return Op(id=f"op{name}", target="regista.adam", args=args, kwargs=(), outputs=made, role=Role.UPDATE)

    given = [f"{slot}{name}" for name in "ab" for slot in slots]
    (op,) = fuse_adams((adam("a"), adam("b")), frozenset(given))
    assert op.inputs == tuple(given) and op.outputs == (*adam("a").outputs, *adam("b").outputs)
    called = update_call(op, frozenset(given))
    assert called is not None
    rng, width = torch.Generator().manual_seed(3), len(slots)
    values = [torch.rand((3, 4), generator=rng, dtype=torch.float64) for _ in given]
    values[4::width] = [torch.tensor(float(count)) for count in (0, 3)]
    largest = [value.clone() if amsgrad else None for value in values[width - 1 :: width]]
    wanted = [new for at, most in zip((0, width), largest, strict=True) for new in adam_update(*values[at : at + 5], most, *numbers)]
    got = called[0](*values)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert all(value.data_ptr() in {v.data_ptr() for v in values} for value in got)


def test_a_rate_that_is_an_input_of_the_step_is_the_last_argument() -> None:
    values = values_of([(2, 3)], [torch.float32], torch.Generator().manual_seed(2))
    wanted = adamw_update(*[value.clone() for value in values], *HYPER)
    rate = torch.tensor(HYPER[0], dtype=torch.float64)
    for a, b in zip(adam_in_place([True] * 5, replace(NUMBERS, lr=None))(*values, rate), wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("own", [(True, True), (True, False), (False, True), (False, False)])
def test_sgd_in_place_gives_the_bits_of_the_op_and_writes_only_to_what_it_owns(
    own: tuple[bool, bool], weight_decay: float, nesterov: bool, momentum: float | None
) -> None:
    rng = torch.Generator().manual_seed(7)
    param, grad, held = (torch.rand(5, 3, generator=rng) for _ in range(3))
    buffer = held if momentum else None
    before = param.clone(), grad.clone(), held.clone()
    constants = (0.1, momentum or 0.0, weight_decay, nesterov and momentum is not None)
    wanted = sgd_update(param, grad, buffer, *constants)
    got = sgd_in_place(own)(param, grad, buffer, *constants)
    assert len(got) == len(wanted) and all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert torch.equal(param, before[0]) != own[0]
    assert torch.equal(grad, before[1])
    assert torch.equal(held, before[2]) != (own[1] and buffer is not None)


def test_an_update_takes_in_place_exactly_the_values_that_may_be_overwritten() -> None:
    (op,) = fuse_adams((adamw("a"),), given_to("a"))
    call = update_call(op, frozenset({"wa", "ma", "ta"}))
    assert call is not None
    values = values_of([(2,)], [torch.float32], torch.Generator().manual_seed(1))
    before = [value.clone() for value in values]
    call[0](*values)
    assert [slot for slot, value, old in zip(SLOTS, values, before, strict=True) if not torch.equal(value, old)] == ["w", "m", "t"]
    assert call[1] == op.args[:5]
    assert update_call(relu("x", "y"), frozenset({"x"})) is None
