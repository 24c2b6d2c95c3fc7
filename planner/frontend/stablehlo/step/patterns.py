"""A listing in the operations that torch has: numbers worked out, look-ups without their guards, and norms, activations, softmax as one each.

found                                                       becomes
select(true, x, y), maximum(-inf, x), 2 + 3                 x, x, 5
select(in bounds(i), gather(x, i), nan)                     gather(x, i); an index out of bounds ends the step with an error
gather(x, select(i < 0, i + n, i))                          gather(x, i); so does a negative one
the operations of one of torch's                            that one (planner.frontend.stablehlo.step.composites)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isnan

import torch

from planner.frontend.stablehlo.listing import Listing, Operation
from planner.frontend.stablehlo.performing.elementwise import ELEMENTWISE
from planner.frontend.stablehlo.performing.values import Value, torch_dtype
from planner.frontend.stablehlo.step.attention import attention
from planner.frontend.stablehlo.step.composites import composite
from planner.frontend.stablehlo.step.matching import Matcher, long_dims

__all__ = ["simplified"]


def simplified(listing: Listing) -> Listing:
    """The same results from fewer operations; what led to the others is left out."""
    for rewrite in (_numbers, _lookups, composite, attention):
        listing = _rewritten(listing, rewrite)
    return listing


_Rewriting = Callable[[Operation, Matcher, Listing], "Operation | int | None"]


def _rewritten(listing: Listing, rewrite: _Rewriting) -> Listing:
    """Each operation as ``rewrite`` says: another with the same result, a value that stands for its result, or None: itself."""
    stands_for: dict[int, int] = {}
    kept = list[Operation]()
    matcher = Matcher(listing)
    for given in listing.operations:
        operation = replace(given, operands=tuple(stands_for.get(value, value) for value in given.operands))
        for result in operation.results:
            matcher.made_by[result] = operation
        new = rewrite(operation, matcher, listing)
        if isinstance(new, int):
            stands_for[operation.results[0]] = new
            continue
        operation = new or operation
        matcher.made_by[operation.results[0]] = operation
        kept.append(operation)
    results = tuple(stands_for.get(value, value) for value in listing.results)
    return replace(listing, operations=tuple(kept), results=results).needed_for(results)


def _numbers(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | int | None:
    """Work out what follows from numbers alone."""
    if operation.name == "select" and (chosen := matcher.number(operation.operands[0])) is not None:
        return operation.operands[1 if chosen else 2]
    type_ = listing.types[operation.results[0]]
    numbers = [matcher.number(value) for value in operation.operands]
    if operation.name == "reduce" and operation.text("body") in ("and", "or") and None not in numbers:
        return _constant(operation, numbers[0] or 0)
    if operation.name not in ELEMENTWISE or None in numbers:
        return _neutral(operation, numbers) if _same_types(operation, listing) else None
    operands = [_as_value(number, listing, value) for number, value in zip(numbers, operation.operands, strict=True)]
    made = ELEMENTWISE[operation.name](operation, operands, torch_dtype(type_)).number
    return None if made is None else _constant(operation, made)


def _neutral(operation: Operation, numbers: Sequence[float | None]) -> int | None:
    """maximum(-inf, x), x and true: x; jax.nn.softmax and jnp.tril begin so."""
    for name, neutral in (("maximum", -inf), ("and", 1), ("or", 0)):
        if operation.name == name and neutral in numbers:
            return operation.operands[1 - list(numbers).index(neutral)]
    if operation.name == "select" and numbers[1:] == [1, 0]:
        return operation.operands[0]
    return None


def _same_types(operation: Operation, listing: Listing) -> bool:
    """Whether the result has the type of every operand."""
    return all(listing.types[value] == listing.types[operation.results[0]] for value in operation.operands)


def _as_value(number: float | None, listing: Listing, value: int) -> Value:
    dtype = torch_dtype(listing.types[value])
    kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
    return Value(kind(number or 0), listing.types[value].shape, dtype)


def _constant(operation: Operation, number: float) -> Operation:
    return replace(operation, name="constant", operands=(), attributes={"value": number})


def _lookups(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | int | None:
    if operation.name == "select" and (number := matcher.number(operation.operands[2])) is not None and isnan(number):
        looked_up = matcher.made_by.get(matcher.bare(operation.operands[1]))
        extent = None if looked_up is None or looked_up.name != "gather" else _extent(looked_up, listing)
        if looked_up is not None and extent is not None and _follows_from(matcher, operation.operands[0], looked_up.operands[1], extent):
            return operation.operands[1]
    if operation.name == "gather" and (extent := _extent(operation, listing)) is not None:
        wrapped = matcher.found(operation.operands[1], ("select", ("compare", "i", 0.0), ("add", "i", "n"), "i"))
        if wrapped and matcher.number(wrapped["n"]) == extent:
            shape = listing.types[operation.operands[1]].shape
            if long_dims(shape) == long_dims(listing.types[wrapped["i"]].shape):
                attributes = {**operation.attributes, "index_shape": shape}
                return replace(operation, operands=(operation.operands[0], wrapped["i"]), attributes=attributes)
        if extent == 1 and matcher.number(operation.operands[1]) == 0:
            return replace(operation, name="reshape", operands=operation.operands[:1], attributes={})
    return None


def _extent(operation: Operation, listing: Listing) -> int | None:
    """The extent of the one dim that a gather looks up."""
    along = operation.record("dimension_numbers")["start_index_map"]
    return listing.types[operation.operands[0]].shape[along[0]] if isinstance(along, tuple) and len(along) == 1 else None


_OF_INDICES = ("compare", "and", "reduce", "convert", "constant", "select", "add")
_BOUNDS = (("GE", 0), ("LT", 0), ("LE", -1))
"""Comparisons of a guard, and with which place of the dim; LT 0 is that of a place counted from the end."""


def _follows_from(matcher: Matcher, value: int, index: int, extent: int) -> bool:
    """Whether a mask says that an index lies in a dim of ``extent``, and nothing else."""
    waiting, bare = [value], matcher.bare(index)
    while waiting:
        value = matcher.bare(waiting.pop())
        if value == bare:
            continue
        operation = matcher.made_by.get(value)
        if operation is None or operation.name not in _OF_INDICES:
            return False
        if operation.name == "compare":
            number, direction = matcher.number(operation.operands[1]), operation.text("comparison_direction")
            if not any(direction == known and number == place % extent for known, place in _BOUNDS):
                return False
        waiting.extend(operation.operands)
    return True
