"""Attention in parts, as jax.nn.dot_product_attention lowers to it, as one op.

    s = dot(q, k) c;   s = where(mask, s, very low);   p = softmax(s);   o = dot(p, v)

The dims of each value are followed from the first product to the last: batch and heads b, queries t, keys s, their width e, values' width d.
A mask must follow from constants alone and leave every query something to see: of a row that sees nothing JAX takes the mean, and torch's op 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.frontend.stablehlo.listing import Listing, Operation
from planner.frontend.stablehlo.performing import perform
from planner.frontend.stablehlo.step.matching import Matcher

__all__ = ["attention"]

_VERY_LOW = -1e9
_LARGEST_MASK = 1 << 24

Labels = tuple[str, ...]
"""A name per dim of a value; "" where its extent is 1."""


@dataclass(slots=True)
class _Scores:
    """What lies between the first product and the softmax.   labels: of the dims of the value that is looked at."""

    product: Operation
    scale: float
    mask: int | None
    labels: Labels
    mask_labels: Labels


def attention(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    """The whole of the attention whose last product an operation is, with the same result; None: it is no such product."""
    if operation.name != "dot_general":
        return None
    for place in (0, 1):
        weights = matcher.made_by.get(matcher.bare(operation.operands[place]))
        if weights is not None and weights.name == "softmax" and (scores := _scores(weights.operands[0], matcher, listing)) is not None:
            return _whole(operation, place, scores, listing) if _over_keys(weights, scores) else None
    return None


def _scores(value: int, matcher: Matcher, listing: Listing) -> _Scores | None:
    """From the softmax back to the product of queries and keys."""
    passed, scale, mask, mask_at = list[Operation](), 1.0, None, 0
    while (operation := matcher.made_by.get(value)) is not None and operation.name != "dot_general":
        numbers = [matcher.number(operand) for operand in operation.operands]
        match operation.name:
            case "transpose" | "reshape":
                value = operation.operands[0]
            case "multiply" | "divide" if numbers[1] is not None:
                scale *= numbers[1] if operation.name == "multiply" else 1 / numbers[1]
                value = operation.operands[0]
            case "multiply" if numbers[0] is not None:
                scale *= numbers[0]
                value = operation.operands[1]
            case "select" if mask is None and numbers[2] is not None and numbers[2] <= _VERY_LOW:
                mask, mask_at = operation.operands[0], len(passed)
                value = operation.operands[1]
            case _:
                return None
        passed.append(operation)
    if operation is None or (mask is not None and not _sees_something(mask, listing)):
        return None
    labels = _of_product(operation, listing)
    mask_labels: Labels = ()
    for place in range(len(passed) - 1, -1, -1):
        if labels is None:
            return None
        if mask is not None and place == mask_at:
            mask_labels = labels
        labels = _followed(passed[place], labels, listing)
    return None if labels is None else _Scores(operation, scale, mask, labels, mask_labels)


def _over_keys(weights: Operation, scores: _Scores) -> bool:
    dim = weights.attributes["dim"]
    return isinstance(dim, int) and scores.labels[dim] == "s"


def _sees_something(mask: int, listing: Listing) -> bool:
    type_ = listing.types[mask]
    if type_.numel > _LARGEST_MASK or not type_.shape:
        return False
    part = listing.needed_for([mask])
    given = {entry.value for entry in listing.inputs}
    if any(value in given for operation in part.operations for value in operation.operands):
        return False
    return bool(perform(part, {})[0].any(-1).all())


def _of_product(operation: Operation, listing: Listing) -> Labels | None:
    """Labels of the scores' dims: b0, b1, ... then the queries' and the keys' free dims, of which one each is longer than 1."""
    numbers = operation.record("dot_dimension_numbers")
    batch, contracted = _dims(numbers, "lhs_batching_dimensions"), _dims(numbers, "lhs_contracting_dimensions")
    if len(contracted) != 1:
        return None
    q, k = (listing.types[operand].shape for operand in operation.operands)
    free_q = [q[d] for d in range(len(q)) if d not in (*batch, *contracted)]
    other = (*_dims(numbers, "rhs_batching_dimensions"), *_dims(numbers, "rhs_contracting_dimensions"))
    free_k = [k[d] for d in range(len(k)) if d not in other]
    if sum(extent != 1 for extent in free_q) != 1 or sum(extent != 1 for extent in free_k) != 1:
        return None
    of_batch = [f"b{place}" if q[d] != 1 else "" for place, d in enumerate(batch)]
    return (*of_batch, *("t" if extent != 1 else "" for extent in free_q), *("s" if extent != 1 else "" for extent in free_k))


def _dims(numbers: Mapping[str, tuple[int, ...] | int], field: str) -> tuple[int, ...]:
    value = numbers[field]
    return (value,) if isinstance(value, int) else value


def _followed(operation: Operation, labels: Labels, listing: Listing) -> Labels | None:
    """The labels of the result."""
    if operation.name == "transpose":
        return tuple(labels[dim] for dim in operation.ints("permutation"))
    if operation.name != "reshape":
        return labels
    given, made = listing.types[operation.operands[0]].shape, listing.types[operation.results[0]].shape
    if [extent for extent in given if extent != 1] != [extent for extent in made if extent != 1]:
        return None
    kept = iter([label for label in labels if label])
    return tuple("" if extent == 1 else next(kept) for extent in made)


def _whole(operation: Operation, place: int, scores: _Scores, listing: Listing) -> Operation | None:
    numbers = operation.record("dot_dimension_numbers")
    sides = ("lhs", "rhs") if place == 0 else ("rhs", "lhs")
    mine, its = ([_dims(numbers, f"{side}_{kind}_dimensions") for kind in ("batching", "contracting")] for side in sides)
    v = operation.operands[1 - place]
    weights = listing.types[operation.operands[place]].shape
    labels = _regrouped(scores.labels, weights)
    if labels is None or [labels[d] for d in mine[1] if labels[d]] != ["s"] or len(mine[1]) != 1:
        return None
    of_v = [""] * len(listing.types[v].shape)
    for own, other in zip((*mine[0], *mine[1]), (*its[0], *its[1]), strict=True):
        of_v[other] = labels[own]
    free = [d for d in range(len(of_v)) if d not in (*its[0], *its[1])]
    long_free = [d for d in free if listing.types[v].shape[d] != 1]
    if len(long_free) != 1:
        return None
    of_v[long_free[0]] = "d"
    product = scores.product
    first = product.record("dot_dimension_numbers")
    q, k = product.operands
    of_q, of_k = (_operand_labels(listing.types[value].shape, first, side) for value, side in ((q, "lhs"), (k, "rhs")))
    batch = sorted({label for label in (*of_q, *of_k, *of_v) if label.startswith("b")})
    free_weights = [labels[d] for d in range(len(labels)) if d not in (*mine[0], *mine[1])]
    free_v = [of_v[d] for d in free]
    made = [*(labels[d] for d in mine[0]), *(free_weights + free_v if place == 0 else free_v + free_weights)]
    if len(batch) > 2 or sorted(label for label in made if label) != sorted([*batch, "t", "d"]):
        return None
    order = {"q": of_q, "k": of_k, "v": of_v, "out": made, "mask": list(scores.mask_labels)}
    operands = (q, k, v) if scores.mask is None else (q, k, v, scores.mask)
    attributes = {name: ",".join(found) for name, found in order.items()} | {"scale": scores.scale}
    return replace(operation, name="attention", operands=operands, attributes=attributes)


def _regrouped(labels: Labels, shape: Sequence[int]) -> Labels | None:
    kept = [label for label in labels if label]
    if len(kept) != sum(extent != 1 for extent in shape):
        return None
    following = iter(kept)
    return tuple("" if extent == 1 else next(following) for extent in shape)


def _operand_labels(shape: Sequence[int], numbers: Mapping[str, tuple[int, ...] | int], side: str) -> list[str]:
    batch, contracted = _dims(numbers, f"{side}_batching_dimensions"), _dims(numbers, f"{side}_contracting_dimensions")
    labels = ["" if extent == 1 else "t" if side == "lhs" else "s" for extent in shape]
    for place, dim in enumerate(batch):
        labels[dim] = f"b{place}" if shape[dim] != 1 else ""
    labels[contracted[0]] = "e" if shape[contracted[0]] != 1 else ""
    return labels
