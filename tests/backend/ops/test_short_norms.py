"""Batch norm of bfloat16 and float16 without casts: one kernel forward, one backward, with the values that the casts gave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from backend.ops.fused import fuse
from backend.ops.fused.batch_norm import batch_norm
from backend.ops.fused.short_norms import short_batch_norm, short_batch_norm_gradient, without_casts
from backend.ops.kernels import call
from planner.frontend import Program
from planner.ir.graph import Dt, Op, Ref, Role
from planner.ir.tensor import DType


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)).relu())
        return out.float().square().sum()


def test_batch_norm_between_casts_is_one_op_of_the_same_values() -> None:
    graph = Program(Net(), (torch.randn(4, 3, 6, 6),), None, "sgd").in_formats("bf16-mixed", None).graph(1)
    torch.manual_seed(1)
    env: dict[str, Tensor] = {}
    for given in graph.inputs:
        spec = graph.values[given.value]
        env[given.value] = (torch.rand(spec.shape) + 0.1).to(getattr(torch, spec.dtype.value))
    whole_graph = {graph.loss, graph.mean_loss, *graph.gradients.values(), *graph.updates.values()}
    for role, target in ((Role.FORWARD, "fused.short_batch_norm"), (Role.BACKWARD, "fused.short_batch_norm_gradient")):
        ops = tuple(op for op in graph.ops if op.role is role)
        outside = {value for op in graph.ops if op.role is not role for value in op.inputs}
        leaving = frozenset(outside | whole_graph)
        fused = fuse(ops, leaving)
        assert [op.target for op in fused].count(target) == 1
        results = []
        for each in (ops, fused):
            values = dict(env)
            for op in each:
                for name, value in zip(op.outputs, call(op, values), strict=True):
                    if name is not None and value is not None:
                        values[name] = value
            results.append(values)
        parts, wholes = results
        for value in sorted(leaving & parts.keys()):
            assert wholes[value].dtype == parts[value].dtype
            torch.testing.assert_close(wholes[value], parts[value], rtol=2**-7, atol=1e-5 + 2**-7 * float(parts[value].abs().max()))
        env = parts


def norm(outputs: tuple[str | None, ...] = ("y", "m", "r", None, None)) -> Op:
    args = (Ref("x"), Ref("w"), Ref("b"), None, None, 0.0, 1e-5)
    return Op(id="n", target="fused.batch_norm", args=args, outputs=outputs, role=Role.FORWARD)


def cast(read: str, made: str, dtype: DType) -> Op:
    return Op(
        id=made, target="aten._to_copy.default", args=(Ref(read),), kwargs=(("dtype", Dt(dtype)),), outputs=(made,), role=Role.FORWARD
    )


def test_a_wide_value_that_somebody_else_reads_keeps_its_cast() -> None:
    ops = (cast("h", "x", DType.FLOAT32), norm(), cast("y", "z", DType.BFLOAT16))
    (one,) = without_casts(ops, frozenset({"z"}))
    assert one.inputs[0] == "h" and one.outputs[0] == "z" and one.args[-1] == Dt(DType.BFLOAT16)
    for read in ("x", "y"):
        assert without_casts(ops, frozenset({"z", read})) == ops
    assert without_casts((*ops[:2], cast("y", "z", DType.FLOAT64)), frozenset({"z"})) == (*ops[:2], cast("y", "z", DType.FLOAT64))


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
def test_whatever_was_cast_is_normalised_in_float32_and_narrowed_once(given: torch.dtype) -> None:
    x, vectors, slot = torch.randn(4, 3, 5, 2).to(given), [torch.rand(3) for _ in range(4)], torch.empty(4, 3, 5, 2, dtype=torch.bfloat16)
    wanted = batch_norm(x.float(), *vectors, 0.1, 1e-5)
    for out in (None, slot):
        y, *others = short_batch_norm(x, *vectors, 0.1, 1e-5, torch.bfloat16, out=out)
        torch.testing.assert_close(y, wanted[0].bfloat16(), rtol=2**-7, atol=1e-5)
        assert out is None or y.data_ptr() == out.data_ptr()
        for mine, other in zip(others, wanted[1:], strict=True):
            torch.testing.assert_close(mine, other)
    g = torch.randn(4, 3, 5, 2).bfloat16()
    by_x, *_ = short_batch_norm_gradient(g, x, wanted[1], wanted[2], vectors[0], torch.bfloat16)
    by_wide, *_ = short_batch_norm_gradient(g.float(), x.float(), wanted[1], wanted[2], vectors[0], torch.bfloat16)
    assert by_x is not None and by_wide is not None
    torch.testing.assert_close(by_x, by_wide, rtol=2**-6, atol=2**-6)
