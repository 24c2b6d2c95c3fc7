"""Ops that were taken apart for the planner and stand in one fragment are performed as one kernel, of the same value; others are left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.ops.fused import fuse
from backend.ops.kernels import call
from backend.ops.outs import out_kernel
from planner.ir.graph import Arg, Op, Ref, Role


def op(target: str, args: Sequence[Arg | str], output: str, kwargs: tuple[tuple[str, Arg], ...] = ()) -> Op:
    refs = tuple(Ref(a) if isinstance(a, str) else a for a in args)
    return Op(id=f"n.{output}", target=target, args=refs, kwargs=kwargs, outputs=(output,), role=Role.FORWARD)


LINEAR = (op("aten.mm.default", ("x", "w"), "xw"), op("aten.add.Tensor", ("xw", "b"), "y"))


def log_softmax(dim: int) -> tuple[Op, ...]:
    return (
        op("aten.amax.default", ("x", (dim,), True), "m"),
        op("aten.sub.Tensor", ("x", "m"), "s"),
        op("aten.exp.default", ("s",), "e"),
        op("aten.sum.dim_IntList", ("e", (dim,), True), "z"),
        op("aten.log.default", ("z",), "l"),
        op("aten.sub.Tensor", ("s", "l"), "y"),
    )


def gradient(dim: int) -> tuple[Op, ...]:
    return (
        op("aten.exp.default", ("x",), "e"),
        op("aten.sum.dim_IntList", ("g", (dim,), True), "t"),
        op("aten.mul.Tensor", ("e", "t"), "u"),
        op("aten.sub.Tensor", ("g", "u"), "y"),
    )


def performed(ops: Sequence[Op], env: Mapping[str, Tensor]) -> Tensor:
    values = dict(env)
    for each in ops:
        (result,) = call(each, values)
        assert result is not None and each.outputs[0] is not None
        values[each.outputs[0]] = result
    return values["y"]


def targets(ops: Sequence[Op]) -> list[str]:
    return [each.target for each in ops]


@given(n=st.integers(1, 5), k=st.integers(1, 5), m=st.integers(1, 5), turned=st.booleans(), bias=st.sampled_from(["m", "n,m", "1", ""]))
def test_product_and_addition_become_one_kernel_of_the_same_value(n: int, k: int, m: int, turned: bool, bias: str) -> None:
    torch.manual_seed(n + 10 * k + 100 * m)
    shape = {"m": (m,), "n,m": (n, m), "1": (1,), "": ()}[bias]
    env = {"x": torch.randn(n, k), "w": torch.randn(m, k).t(), "b": torch.randn(shape)}
    parts = (LINEAR[0], op("aten.add.Tensor", ("b", "xw") if turned else ("xw", "b"), "y"))
    whole = fuse(parts, frozenset({"y"}))
    assert targets(whole) == ["fused.mm_bias"]
    torch.testing.assert_close(performed(whole, env), performed(parts, env))


def test_bias_of_another_type_promotes_as_the_addition_does() -> None:
    env = {"x": torch.randn(3, 4).bfloat16(), "w": torch.randn(4, 5).bfloat16(), "b": torch.randn(5)}
    whole = performed(fuse(LINEAR, frozenset({"y"})), env)
    assert whole.dtype == torch.float32
    assert torch.equal(whole, performed(LINEAR, env))


@given(dim=st.sampled_from([0, 1, -1]), rows=st.integers(1, 4), columns=st.integers(1, 6), wide=st.sampled_from([1.0, 1e4]))
def test_log_softmax_and_its_gradient_become_one_kernel_each_of_the_same_value(dim: int, rows: int, columns: int, wide: float) -> None:
    torch.manual_seed(rows + 10 * columns)
    env = {"x": torch.randn(rows, columns, dtype=torch.float64) * wide}
    parts = log_softmax(dim)
    whole = fuse(parts, frozenset({"y"}))
    assert targets(whole) == ["aten._log_softmax.default"]
    torch.testing.assert_close(performed(whole, env), performed(parts, env))
    back = {"x": performed(parts, env), "g": torch.randn(rows, columns, dtype=torch.float64)}
    whole = fuse(gradient(dim), frozenset({"y"}))
    assert targets(whole) == ["fused.log_softmax_gradient"]
    torch.testing.assert_close(performed(whole, back), performed(gradient(dim), back))


@pytest.mark.parametrize("parts", [LINEAR, log_softmax(1), gradient(1)], ids=["mm_bias", "log_softmax", "gradient"])
def test_a_part_that_somebody_else_reads_stays(parts: tuple[Op, ...]) -> None:
    for part in parts[:-1]:
        value = part.outputs[0]
        assert value is not None
        assert fuse(parts, frozenset({"y", value})) == parts
        reader = op("aten.neg.default", (value,), "other")
        assert fuse((*parts, reader), frozenset({"y", "other"})) == (*parts, reader)


def test_what_only_looks_alike_stays() -> None:
    scaled = (LINEAR[0], op("aten.add.Tensor", ("xw", "b"), "y", (("alpha", 2),)))
    assert fuse(scaled, frozenset({"y"})) == scaled
    other_dim = tuple(op("aten.sum.dim_IntList", ("e", (0,), True), "z") if o.outputs == ("z",) else o for o in log_softmax(1))
    assert fuse(other_dim, frozenset({"y"})) == other_dim
    boxed = (
        *log_softmax(1)[:1],
        op("regista.boxing", ("m", "P(max)", "B", 0), "mm"),
        op("aten.sub.Tensor", ("x", "mm"), "s"),
        *log_softmax(1)[2:],
    )
    assert fuse(boxed, frozenset({"y"})) == boxed


def test_a_copy_is_laid_out_row_by_row() -> None:
    (copied,) = call(op("aten.clone.default", ("x",), "y"), {"x": torch.randn(3, 4).t()})
    assert copied is not None and copied.is_contiguous()


def test_a_copy_into_a_block_leaves_the_layout_of_the_block() -> None:
    """Symptom: wrong gradients of whatever reads a clone from its block, from the second micro-batch on.  Cause: the first act laid the block out
    row by row, later acts as the transposed value was, and the reader kept the first layout.  So the copy must never change the block's.
    """
    kernel = out_kernel("aten.clone.default")
    assert kernel is not None
    value, slot = torch.randn(3, 4).t(), torch.empty(4, 3)
    result = kernel[0](value, **{kernel[1]: slot})
    assert isinstance(result, Tensor) and result.data_ptr() == slot.data_ptr() and result.is_contiguous()
    assert torch.equal(slot, value)
