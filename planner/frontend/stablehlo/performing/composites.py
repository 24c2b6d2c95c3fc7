"""Operations that several of StableHLO's make together, as torch has them (planner.frontend.stablehlo.step.patterns finds them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

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
    dim = operation.attributes["dim"]
    assert isinstance(dim, int)
    return Value.of(torch.softmax(operands[0].tensor(), dim))


def _cross_entropy(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, labels = (operand.tensor() for operand in operands)
    found = F.cross_entropy(x.reshape(-1, x.shape[-1]), labels.reshape(-1).to(torch.int64), reduction="none")
    return Value.of(found.reshape(type_.shape))


def _attention(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    """q [b, h, t, e], k [b, h, s, e], v [b, h, s, d] -> [b, h, t, d], each in its own order of dims, which the attributes list."""
    labels = {name: operation.text(name).split(",") for name in ("q", "k", "v", "out", "mask")}
    batch = sorted(label for label in labels["q"] if label.startswith("b"))

    def ordered(value: Value, of: list[str], wanted: list[str]) -> Tensor:
        kept = value.regrouped([extent for extent, label in zip(value.shape, of, strict=True) if label])
        assert kept is not None
        place = [label for label in of if label]
        base = kept.base if isinstance(kept.base, Tensor) else kept.tensor()
        moved = base.permute([place.index(label) for label in wanted])
        return moved.reshape((1,) * (4 - moved.ndim) + tuple(moved.shape)) if moved.ndim < 4 else moved

    q = ordered(operands[0], labels["q"], [*batch, "t", "e"])
    k, v = ordered(operands[1], labels["k"], [*batch, "s", "e"]), ordered(operands[2], labels["v"], [*batch, "s", "d"])
    mask = ordered(operands[3], labels["mask"], [*batch, "t", "s"]) if len(operands) > 3 else None
    scale = operation.attributes["scale"]
    assert isinstance(scale, float)
    made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    now, wanted = [*batch, "t", "d"], [label for label in labels["out"] if label]
    flat = made.reshape(made.shape[4 - len(now) :])
    return Value.of(flat.permute([now.index(label) for label in wanted]).reshape(type_.shape))


COMPOSITES: Mapping[str, Performed] = {
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "gelu_tanh": _gelu,
    "silu": _silu,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "attention": _attention,
}
"""Name -> function(operation, operands, type of the result)."""
