"""Batch norm and PReLU, which the front end took apart, are performed as torch's kernels where one fragment holds all parts, of the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from backend.ops.fused import fuse
from backend.ops.fused.batch_norm import batch_norm
from backend.ops.fused.batch_norm_gradient import batch_norm_gradient
from backend.ops.kernels import call
from planner.frontend import Program
from planner.ir.graph import LogicalGraph, Op, Ref, Role


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.tensor(1.5)), norm

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ((self.norm(x * self.scale).sigmoid() - target) ** 2).sum()


def graph_of(norm: nn.Module, shape: Sequence[int]) -> LogicalGraph:
    return Program(Normed(norm), (torch.randn(shape), torch.rand(shape)), None, "sgd").graph(1)


def fragments(graph: LogicalGraph) -> list[tuple[tuple[Op, ...], frozenset[str]]]:
    """The ops of each pass, and which of their values are read outside of it."""
    results = {graph.loss, graph.mean_loss, *graph.gradients.values(), *graph.updates.values()}
    found = []
    for role in (Role.FORWARD, Role.BACKWARD):
        ops = tuple(op for op in graph.ops if op.role is role)
        outside = {value for op in graph.ops if op.role is not role for value in op.inputs}
        found.append((ops, frozenset(outside | results)))
    return found


def values_of(graph: LogicalGraph) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        value: torch.rand(graph.values[value].shape).to(getattr(torch, graph.values[value].dtype.value))
        + (0 if "num_batches" in value else 0.1)
        for value in (given.value for given in graph.inputs)
    }


def performed(ops: Sequence[Op], env: Mapping[str, Tensor]) -> dict[str, Tensor]:
    values = dict(env)
    for op in ops:
        for name, value in zip(op.outputs, call(op, values), strict=True):
            if name is not None:
                assert value is not None
                values[name] = value
    return values


NORMS = {
    "2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 2)),
    "1d": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "sequence": (lambda: nn.BatchNorm1d(3), (4, 3, 6)),
    "one channel": (lambda: nn.BatchNorm2d(1), (4, 1, 5, 2)),
    "3d without weights": (lambda: nn.BatchNorm3d(3, affine=False), (4, 3, 2, 2, 2)),
    "no running statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 5, 2)),
    "other numbers": (lambda: nn.BatchNorm2d(3, eps=0.1, momentum=0.3), (4, 3, 5, 2)),
}


@pytest.mark.parametrize("kind", NORMS)
def test_batch_norm_and_its_gradient_become_one_kernel_each_of_the_same_values(kind: str) -> None:
    build, shape = NORMS[kind]
    graph = graph_of(build(), shape)
    env = values_of(graph)
    for (ops, leaving), whole in zip(fragments(graph), ("fused.batch_norm", "fused.batch_norm_gradient"), strict=True):
        fused = fuse(ops, leaving)
        assert [op.target for op in fused].count(whole) == 1
        assert {"aten.rsqrt.default", "aten.div.Tensor"}.isdisjoint(op.target for op in fused)
        parts, wholes = performed(ops, env), performed(fused, env)
        for value in sorted(leaving & parts.keys()):
            torch.testing.assert_close(wholes[value], parts[value], rtol=1e-5, atol=1e-5)
        env = parts


def test_statistics_that_are_added_up_over_devices_leave_the_parts_as_they_are() -> None:
    graph = graph_of(nn.BatchNorm2d(3), (4, 3, 5, 2))
    (ops, leaving), _ = fragments(graph)
    total = next(op for op in ops if op.target == "aten.sum.dim_IntList")
    (value,) = total.outputs
    assert value is not None
    boxing = Op(id="box", target="regista.boxing", args=(Ref(value), "P(sum)", "B", 0), outputs=("whole",), role=Role.FORWARD)
    boxed = [op if op is total else op.renamed({value: "whole"}) for op in ops]
    boxed.insert(boxed.index(total) + 1, boxing)
    assert fuse(boxed, leaving) == tuple(boxed)


def test_a_variance_that_somebody_reads_leaves_the_parts_as_they_are() -> None:
    graph = graph_of(nn.BatchNorm2d(3), (4, 3, 5, 2))
    (ops, leaving), _ = fragments(graph)
    root = next(op for op in ops if op.target == "aten.rsqrt.default")
    (shifted,) = [op for op in ops if op.outputs[0] in root.inputs]
    assert fuse(ops, leaving | {shifted.inputs[0]}) == ops


def test_a_result_is_written_to_the_memory_that_is_given() -> None:
    x, slot = torch.randn(4, 3, 5, 2), torch.empty(4, 3, 5, 2)
    vectors = [torch.rand(3) for _ in range(4)]
    before = [vector.clone() for vector in vectors]
    wanted = batch_norm(x, *vectors, 0.1, 1e-5)
    got = batch_norm(x, *vectors, 0.1, 1e-5, out=slot)
    assert got[0] is slot or got[0].data_ptr() == slot.data_ptr()
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(vectors, before, strict=True))


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "channels last": channels_last,
    "a part of the channels": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "a part of the channels, channels last": lambda x: channels_last(torch.cat([x, x], 1))[:, : x.shape[1]],
    "every second sample": lambda x: torch.stack([x, x], 1).flatten(0, 1)[::2],
    "every second column": lambda x: torch.stack([x, x], -1)[..., 0],
    "reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}
"""Memory layouts by name; each function returns the tensor in that layout, with the same values."""


@pytest.mark.parametrize("given", LAYOUTS)
@pytest.mark.parametrize("memory", LAYOUTS)
def test_batch_norm_gives_the_same_into_any_memory_however_its_operand_lies(given: str, memory: str) -> None:
    """torch's kernel alone, given memory, took a part of the channels for a whole tensor: of their variances some became infinite."""
    x = torch.randn(4, 6, 5, 2)
    vectors = [torch.rand(6) for _ in range(4)]
    slot = LAYOUTS[memory](torch.full_like(x, torch.nan))
    got = batch_norm(LAYOUTS[given](x), *vectors, 0.1, 1e-5, out=slot)
    assert got[0].data_ptr() == slot.data_ptr()
    for a, b in zip(got, batch_norm(x, *vectors, 0.1, 1e-5), strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_the_gradient_of_batch_norm_is_the_same_however_its_operands_lie(first: str, second: str) -> None:
    g, x, root, weight = torch.randn(4, 6, 5, 2), torch.randn(4, 6, 5, 2), torch.rand(6) + 1, torch.rand(6)
    mean = x.mean((0, 2, 3))
    spread = torch.stack([mean, mean], -1)[:, 0]
    got = batch_norm_gradient(LAYOUTS[first](g), LAYOUTS[second](x), spread, root, weight)
    for a, b in zip(got, batch_norm_gradient(g, x, mean, root, weight), strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_vectors_of_another_type_promote_as_the_parts_do() -> None:
    graph = graph_of(nn.BatchNorm2d(3), (4, 3, 5, 2))
    env = values_of(graph)
    env["parameter:norm.weight"] = env["parameter:norm.weight"].double()
    for parts, leaving in fragments(graph):
        fused = fuse(parts, leaving)
        assert any(op.target.startswith("fused.batch_norm") for op in fused)
        wanted, got = performed(parts, env), performed(fused, env)
        for value in leaving & got.keys() & wanted.keys():
            assert got[value].dtype == wanted[value].dtype
            torch.testing.assert_close(got[value], wanted[value], rtol=1e-5, atol=1e-5)
        env = wanted


def test_a_gradient_that_lies_in_another_order_gives_the_same_values() -> None:
    graph = graph_of(nn.BatchNorm2d(3), (4, 3, 5, 2))
    _, (ops, leaving) = fragments(graph)
    (whole,) = [op for op in fuse(ops, leaving) if op.target == "fused.batch_norm_gradient"]
    values = {name: torch.rand(3) for name in whole.inputs[2:]} | {name: torch.randn(4, 3, 5, 2) for name in whole.inputs[:2]}
    turned = values | {whole.inputs[0]: values[whole.inputs[0]].to(memory_format=torch.channels_last)}
    for a, b in zip(call(replace(whole), values), call(whole, turned), strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("channels", [1, 3])
def test_prelu_and_its_gradients_become_one_kernel_each_of_the_same_bits(channels: int) -> None:
    graph = graph_of(nn.PReLU(channels), (4, 3, 5, 2))
    env = values_of(graph)
    env["batch:input.0"] = env["batch:input.0"] - 0.6
    for (ops, leaving), whole in zip(fragments(graph), ("fused.prelu", "fused.prelu_gradient"), strict=True):
        fused = fuse(ops, leaving)
        assert [op.target for op in fused].count(whole) == 1 and not any("where" in op.target for op in fused)
        parts, wholes = performed(ops, env), performed(fused, env)
        assert all(torch.equal(wholes[value], parts[value]) for value in leaving & parts.keys())
        env = parts
