"""Operations that several of StableHLO's make together, as torch has them (planner.frontend.stablehlo.step.patterns finds them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from planner.frontend.stablehlo.listing import Operation
from planner.frontend.stablehlo.performing.values import Performed, Value
from planner.ir.tensor import TensorType

__all__ = ["COMPOSITES"]


def _layer_norm(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, *vectors = (operand.tensor() for operand in operands)
    scale = vectors.pop(0) if operation.attributes["scale"] else None
    bias = vectors.pop(0) if operation.attributes["bias"] else None
    eps = operation.attributes["eps"]
    assert isinstance(eps, float)
    return Value.of(F.layer_norm(x, x.shape[-1:], scale, bias, eps))


def _gelu(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    return Value.of(F.gelu(operands[0].tensor(), approximate="tanh" if operation.name == "gelu_tanh" else "none"))


def _silu(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    return Value.of(F.silu(operands[0].tensor()))


def _softmax(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    return Value.of(torch.softmax(operands[0].tensor(), -1))


def _cross_entropy(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, labels = (operand.tensor() for operand in operands)
    found = F.cross_entropy(x.reshape(-1, x.shape[-1]), labels.reshape(-1).to(torch.int64), reduction="none")
    return Value.of(found.reshape(type_.shape))


COMPOSITES: Mapping[str, Performed] = {
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "gelu_tanh": _gelu,
    "silu": _silu,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
}
"""Name -> function(operation, operands, type of the result)."""
