"""Operations on each element.  Operands that broadcast stay as small as they are; numbers are worked out at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from planner.frontend.stablehlo.listing import Operation
from planner.frontend.stablehlo.performing.values import Number, Value

__all__ = ["ELEMENTWISE"]

_Unary = tuple[Callable[[Tensor], Tensor], Callable[[float], object]]
_Binary = tuple[Callable[[Tensor | Number, Tensor | Number], Tensor], Callable[[Number, Number], object]]


def _float(value: object) -> float:
    return float(value)  # type: ignore[arg-type]


_UNARY: Mapping[str, _Unary] = {
    "negate": (torch.neg, operator.neg),
    "abs": (torch.abs, abs),
    "sign": (torch.sign, np.sign),
    "exponential": (torch.exp, np.exp),
    "exponential_minus_one": (torch.expm1, np.expm1),
    "log": (torch.log, np.log),
    "log_plus_one": (torch.log1p, np.log1p),
    "logistic": (torch.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (torch.tanh, np.tanh),
    "sqrt": (torch.sqrt, np.sqrt),
    "rsqrt": (torch.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sine": (torch.sin, np.sin),
    "cosine": (torch.cos, np.cos),
    "floor": (torch.floor, np.floor),
    "ceil": (torch.ceil, np.ceil),
    "round_nearest_even": (torch.round, np.round),
    "square": (lambda x: x * x, lambda x: x * x),
    "is_finite": (torch.isfinite, np.isfinite),
    "erf": (torch.erf, math.erf),
    "erfc": (torch.erfc, math.erfc),
}


def _divided(a: Tensor | Number, b: Tensor | Number) -> Tensor:
    if any(isinstance(side, Tensor) and not side.dtype.is_floating_point for side in (a, b)):
        return torch.div(a, b, rounding_mode="trunc")
    return torch.div(a, b) if isinstance(a, Tensor) else a * torch.reciprocal(b)  # type: ignore[arg-type]


def _larger(a: Tensor | Number, b: Tensor | Number) -> Tensor:
    tensor, other = (a, b) if isinstance(a, Tensor) else (b, a)
    assert isinstance(tensor, Tensor)
    if isinstance(other, Tensor):
        return torch.maximum(tensor, other)
    return torch.relu(tensor) if other == 0 else torch.clamp(tensor, min=other)


def _smaller(a: Tensor | Number, b: Tensor | Number) -> Tensor:
    tensor, other = (a, b) if isinstance(a, Tensor) else (b, a)
    assert isinstance(tensor, Tensor)
    return torch.minimum(tensor, other) if isinstance(other, Tensor) else torch.clamp(tensor, max=other)


def _bits(of_bool: Callable[..., Tensor], of_int: Callable[..., Tensor]) -> Callable[[Tensor | Number, Tensor | Number], Tensor]:
    def performed(a: Tensor | Number, b: Tensor | Number) -> Tensor:
        tensor, other = (a, b) if isinstance(a, Tensor) else (b, a)
        assert isinstance(tensor, Tensor)
        given = other if isinstance(other, Tensor) else torch.full((), other, dtype=tensor.dtype)
        return (of_bool if tensor.dtype is torch.bool else of_int)(tensor, given)

    return performed


_BINARY: Mapping[str, _Binary] = {
    "add": (operator.add, operator.add),
    "subtract": (operator.sub, operator.sub),
    "multiply": (operator.mul, operator.mul),
    "divide": (_divided, lambda a, b: int(a / b) if isinstance(a, int) else _float(np.float64(a) / np.float64(b))),
    "power": (torch.pow, lambda a, b: np.float64(a) ** b),
    "maximum": (_larger, max),
    "minimum": (_smaller, min),
    "remainder": (lambda a, b: torch.fmod(a, b), lambda a, b: np.fmod(a, b)),  # type: ignore[arg-type]
    "and": (_bits(torch.logical_and, torch.bitwise_and), operator.and_),
    "or": (_bits(torch.logical_or, torch.bitwise_or), operator.or_),
    "xor": (_bits(torch.logical_xor, torch.bitwise_xor), operator.xor),
}

_COMPARE = {"EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge}
_MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


def _value(base: object, like: Value, dtype: torch.dtype) -> Value:
    """The result; a number is kept as Python has it."""
    if isinstance(base, Tensor):
        return Value(base, like.shape, dtype)
    kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
    with np.errstate(all="ignore"):
        return Value(kind(base), like.shape, dtype)  # type: ignore[call-overload,arg-type]


def _unary(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    of_tensor, of_number = _UNARY[operation.name]
    x = operands[0]
    return _value(of_tensor(x.base) if isinstance(x.base, Tensor) else of_number(x.base), x, dtype)


def _not(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    x = operands[0].base
    if isinstance(x, Tensor):
        return _value(torch.logical_not(x) if dtype is torch.bool else torch.bitwise_not(x), operands[0], dtype)
    return _value(not x if dtype is torch.bool else ~int(x), operands[0], dtype)


def _binary(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    of_tensors, of_numbers = _BINARY[operation.name]
    a, b = (operand.base for operand in operands)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return _value(of_tensors(a, b), operands[0], dtype)
    with np.errstate(all="ignore"):
        return _value(of_numbers(a, b), operands[0], dtype)


def _compare(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    direction = operation.text("comparison_direction")
    a, b = (operand.base for operand in operands)
    if isinstance(b, Tensor) and not isinstance(a, Tensor):
        a, b, direction = b, a, _MIRRORED[direction]
    return _value(_COMPARE[direction](a, b), operands[0], dtype)


def _select(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    condition, yes, no = operands
    if not isinstance(condition.base, Tensor):
        return yes if condition.base else no
    if not condition.shape:
        condition = Value(condition.base.reshape((1,) * len(yes.shape)), yes.shape, condition.dtype)
    assert isinstance(condition.base, Tensor)
    if isinstance(yes.base, Tensor) and not isinstance(no.base, Tensor):
        return _value(yes.base.masked_fill(torch.logical_not(condition.base), no.base), yes, dtype)
    if isinstance(no.base, Tensor) and not isinstance(yes.base, Tensor):
        return _value(no.base.masked_fill(condition.base, yes.base), yes, dtype)
    return _value(torch.where(condition.base, yes.small(), no.small()), yes, dtype)


def _clamp(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    low, x, high = operands
    as_high = Value(high.base, x.shape, dtype) if high.number is not None else Value.of(high.tensor().expand(x.shape))
    as_low = Value(low.base, x.shape, dtype) if low.number is not None else Value.of(low.tensor().expand(x.shape))
    at_least = _value(_larger(x.base, as_low.base) if _any_tensor(x, as_low) else max(x.base, as_low.base), x, dtype)
    return _value(
        _smaller(at_least.base, as_high.base) if _any_tensor(at_least, as_high) else min(at_least.base, as_high.base),
        x,
        dtype,
    )


def _any_tensor(*values: Value) -> bool:
    return any(isinstance(value.base, Tensor) for value in values)


def _convert(operation: Operation, operands: Sequence[Value], dtype: torch.dtype) -> Value:
    x = operands[0]
    return _value(x.base.to(dtype) if isinstance(x.base, Tensor) else x.base, x, dtype)


Performed = Callable[[Operation, Sequence[Value], torch.dtype], Value]

ELEMENTWISE: Mapping[str, Performed] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    "not": _not,
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
}
"""Name -> function(operation, operands, dtype of the result)."""
