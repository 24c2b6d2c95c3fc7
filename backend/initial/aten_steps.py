"""What a call of an aten op means for a recipe: a fill, a draw, or arithmetic with numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from backend.initial.recipe import Arithmetic, Change, Distribution, Normal, Uniform

__all__ = ["EMPTY", "FILLS", "change_of", "distribution_of", "factory_distribution", "number_of"]

FILLS: Mapping[str, float] = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0}
EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_CHANGES: Mapping[str, Arithmetic] = {op.value: op for op in Arithmetic} | {
    "subtract": Arithmetic.SUB,
    "multiply": Arithmetic.MUL,
    "divide": Arithmetic.DIV,
    "clamp_min": Arithmetic.CLAMP,
    "clamp_max": Arithmetic.CLAMP,
}


def number_of(value: object) -> float | None:
    return float(value) if isinstance(value, bool | int | float) else None


def distribution_of(name: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> Distribution | None:
    """Of x.normal_(mean, std) and x.uniform_(low, high)."""
    if name == "normal":
        mean, std = (*rest, *(0.0, 1.0)[len(rest) :])[:2]
        return Normal(mean=float(kwargs.get("mean", mean)), std=float(kwargs.get("std", std)))
    if name == "uniform":
        low, high = (*rest, *(0.0, 1.0)[len(rest) :])[:2]
        return Uniform(low=float(kwargs.get("from", low)), high=float(kwargs.get("to", high)))
    return None


def factory_distribution(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Distribution | None:
    if name in ("randn", "randn_like"):
        return Normal()
    if name in ("rand", "rand_like"):
        return Uniform()
    if name == "normal" and len(args) >= 2 and all(isinstance(a, int | float) for a in args[:2]):
        return Normal(mean=float(args[0]), std=float(args[1]))
    return None


def change_of(name: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> Change | None:
    """Elementwise arithmetic with numbers."""
    op = _CHANGES.get(name)
    if op is None or any(kwargs.get(key) not in (None, 1) for key in ("alpha", "rounding_mode")):
        return None
    if op is Arithmetic.CLAMP:
        places = {"clamp": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",)}[name]
        given = dict(zip(places, rest, strict=False)) | {key: kwargs[key] for key in places if key in kwargs}
        if any(value is not None and number_of(value) is None for value in given.values()):
            return None
        low, high = number_of(given.get("min")), number_of(given.get("max"))
        return Change(op=op, numbers=(-math.inf if low is None else low, math.inf if high is None else high))
    numbers = [number_of(value) for value in rest]
    wanted = 0 if op in (Arithmetic.NEG, Arithmetic.ABS, Arithmetic.SQRT) else 1
    if len(numbers) != wanted or None in numbers:
        return None
    return Change(op=op, numbers=tuple(n for n in numbers if n is not None))
