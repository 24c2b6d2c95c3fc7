"""The op set against traced steps: every op of the zoo has a rule, and its signatures hold on the traced shapes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
import torch
from torch import Tensor

from backend.ops.kernels import call
from planner.ir.graph import LogicalGraph, Op
from planner.ir.sbp import B, S
from planner.ir.tensor import TensorType
from planner.opset import flop, is_creation, known_targets, localize, signatures, traffic_bytes
from tests.oracles.sbp_check import Case, disagreement
from zoo import ZOO

MODELS: dict[str, dict[str, int | str]] = {
    "mlp": {"optimizer": "adamw"},
    "gpt": {"batch": 8},
    "convnet": {"batch": 8, "channels": 4, "size": 8},
    "alexnet": {"batch": 8, "image": 63, "width": 2, "classes": 6},
    "resnet50": {"batch": 8, "image": 16, "width": 4, "classes": 6, "layers": 8, "statistics": 2},
    "unet": {"batch": 8, "image": 16, "width": 4, "classes": 3, "layers": 2, "norm": 1, "bilinear": 1},
    "vit": {"batch": 8, "image": 16, "patch": 8, "width": 8, "heads": 2, "layers": 1, "classes": 6},
    "wide_deep": {"batch": 8, "vocab": 64, "embedding": 4, "layers": 2, "width": 8},
    "dlrm": {"batch": 8, "rows": 256, "tables": 4, "width": 8},
    "insightface": {"batch": 8, "image": 16, "classes": 12, "layers": 6, "width": 4, "vector": 8},
    "llama3": {"batch": 8, "layers": 1, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocab": 64, "seq": 16},
    "t5": {"batch": 8, "layers": 1, "width": 32, "heads": 4, "hidden": 48, "vocab": 64, "seq": 16},
    "moe": {"batch": 8, "layers": 2, "width": 32, "heads": 4, "experts": 4, "hidden": 48, "vocab": 64, "seq": 16},
}


@cache
def graph(model: str) -> LogicalGraph:
    return ZOO[model](**MODELS[model]).graph(2)


def _value(value_type: TensorType, generator: torch.Generator) -> Tensor:
    """Positive reals (logarithms and roots are defined), indices 0 and 1 (in range of every table)."""
    dtype = getattr(torch, value_type.dtype.value)
    if value_type.dtype.is_floating:
        return (torch.rand(value_type.shape, generator=generator) + 0.1).to(dtype)
    return torch.randint(0, 2, value_type.shape, generator=generator).to(dtype)


def _drawn(value: str, value_type: TensorType, made: Mapping[str | None, Tensor | None], generator: torch.Generator) -> Tensor:
    constant = made.get(value)
    return _value(value_type, generator) if constant is None else constant


def _distinct_ops(model: str) -> Iterator[tuple[Op, Case]]:
    """One op of each target and shapes, with values drawn for its traced types; what is made from literals is what it is."""
    traced, seen = graph(model), set[object]()
    generator = torch.Generator().manual_seed(0)
    made = {op.outputs[0]: call(op, {})[0] for op in traced.ops if is_creation(op)}
    for op in traced.ops:
        types = {v: traced.values[v] for v in (*op.inputs, *op.outputs) if v is not None}
        key = (op.target, tuple(types.values()), len(set(op.inputs)), str([a for a in op.args if isinstance(a, int | tuple)]))
        if key not in seen and max((t.numel for t in types.values()), default=0) <= 1 << 18:
            seen.add(key)
            yield op, Case(op=op, types=types, env={v: _drawn(v, types[v], made, generator) for v in op.inputs})


@pytest.mark.parametrize("model", MODELS)
def test_every_op_of_a_traced_step_has_a_rule(model: str) -> None:
    assert {op.target for op in graph(model).ops} <= known_targets()


@pytest.mark.parametrize("model", MODELS)
def test_signatures_hold_on_the_traced_shapes(model: str) -> None:
    by_target: dict[str, list[Case]] = {}
    for op, case in _distinct_ops(model):
        by_target.setdefault(op.target, []).append(case)
    rng = random.Random(0)
    sample = [case for group in by_target.values() for case in rng.sample(group, min(3, len(group)))]
    assert not [wrong for case in sample for s in signatures(case.op, case.types, 2) if (wrong := disagreement(case, s, 2))]


@pytest.mark.parametrize("model", MODELS)
def test_data_parallelism_is_found_for_every_op_of_forward_and_backward(model: str) -> None:
    """No op of a micro-batch stops the batch split: each has a signature beyond all-B, or reads and writes nothing of batch size."""
    traced = graph(model)
    rows = next(traced.values[i.value].shape[0] for i in traced.inputs if i.batch_dim == 0)
    for op in traced.ops:
        first = traced.values[op.inputs[0]] if op.inputs else None
        if op.role.per_micro_batch and first is not None and first.ndim > 1 and first.shape[0] == rows:
            assert any(s.inputs[0] == S(0) for s in signatures(op, traced.values, 2)), op.where()


@pytest.mark.parametrize("model", MODELS)
def test_every_op_has_a_cost_and_runs_on_one_device(model: str) -> None:
    traced = graph(model)
    for op in traced.ops:
        types = {v: traced.values[v] for v in (*op.inputs, *op.outputs) if v is not None}
        assert flop(op, types) >= 0 and traffic_bytes(op, types) >= 0
        (alone,) = signatures(op, types, 1)
        assert set(alone.inputs) <= {B} and localize(op, alone, types, 1).target == op.target
