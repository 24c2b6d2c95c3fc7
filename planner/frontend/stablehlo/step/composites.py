"""Which operations together are one of torch's.

JAX has no layer norm or softmax of its own: they arrive in ten operations, which would be priced and performed one by one.  What is found here
is what a torch user writes, so rules, prices and kernels are those that a torch user gets.

    (x - mean) (rsqrt(var + eps) scale) + bias                  layer_norm                        [flax.nnx.LayerNorm]
    x (1/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))))           gelu_tanh; with erf: gelu         [jax.nn.gelu]
    convolution + bias per channel                              convolution
    x logistic(x)                                               silu
    exp(x - max) / sum(exp(x - max))                            softmax
    log sum exp(x) - x[label]                                   cross_entropy                     [optax.losses]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.frontend.stablehlo.listing import Listing, Operation
from planner.frontend.stablehlo.step.matching import Found, Matcher, Pattern, long_dims

__all__ = ["composite"]

_CUBE: Pattern = ("multiply", ("multiply", "x", "x"), "x")
_GELU_TANH: Pattern = (
    "multiply",
    "x",
    ("multiply", 0.5, ("add", 1.0, ("tanh", ("multiply", 0.7978845608, ("add", "x", ("multiply", 0.044715, _CUBE)))))),
)
_GELU_ERF: Sequence[Pattern] = (
    ("multiply", ("multiply", 0.5, "x"), ("erfc", ("multiply", ("negate", "x"), 0.7071067811))),
    ("multiply", "x", ("multiply", 0.5, ("add", 1.0, ("erf", ("divide", "x", 1.4142135623))))),
    ("divide", ("multiply", "x", ("add", 1.0, ("erf", ("divide", "x", 1.4142135623)))), 2.0),
)
_SILU: Sequence[Pattern] = (
    ("multiply", "x", ("logistic", "x")),
    ("multiply", "x", ("divide", 1.0, ("add", 1.0, ("exponential", ("negate", "x"))))),
)
_MEAN: Pattern = ("divide", ("reduce_add", "x"), "n")
_VARIANCES: Sequence[Pattern] = (
    ("maximum", 0.0, ("subtract", ("divide", ("reduce_add", ("square", "x")), "n"), ("square", _MEAN))),
    ("divide", ("reduce_add", ("square", ("subtract", "x", _MEAN))), "n"),
)
_CENTRED: Pattern = ("subtract", "x", _MEAN)
_SHIFTED: Pattern = ("subtract", "x", ("reduce_maximum", "x"))
_SOFTMAX: Pattern = ("divide", ("exponential", _SHIFTED), ("reduce_add", ("exponential", _SHIFTED)))
_SAFE_MAX: Pattern = ("select", ("is_finite", ("reduce_maximum", "x")), ("reduce_maximum", "x"), 0.0)
_LOG_SUM: Sequence[Pattern] = tuple(
    ("add", ("log", inner), most)
    for most in (_SAFE_MAX, ("reduce_maximum", "x"))
    for exps in (("reduce_add", ("exponential", ("subtract", "x", most))),)
    for inner in (exps, ("abs", exps))
)


def composite(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    """The operation of torch whose last operation this is, with the same result; None: there is none."""
    for name, rest in _activations(operation, matcher):
        if listing.types[rest["x"]].shape == listing.types[operation.results[0]].shape:
            return replace(operation, name=name, operands=(rest["x"],), attributes={})
    if operation.name == "add" and (biased := _convolution(operation, matcher, listing)) is not None:
        return biased
    return _layer_norm(operation, matcher, listing) or _softmax(operation, matcher, listing) or _cross_entropy(operation, matcher, listing)


def _activations(operation: Operation, matcher: Matcher) -> Iterator[tuple[str, Found]]:
    if operation.name not in ("multiply", "divide"):
        return
    for name, patterns in (("gelu_tanh", (_GELU_TANH,)), ("gelu", _GELU_ERF), ("silu", _SILU)):
        for pattern in patterns:
            if found := matcher.found(operation.results[0], pattern):
                yield name, found


def _convolution(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    """A convolution to which a number per channel is added."""
    for convolved, added in (operation.operands, operation.operands[::-1]):
        made, bias = matcher.made_by.get(convolved), matcher.bare(added)
        if made is None or made.name != "convolution" or len(made.operands) != 2 or len(listing.types[bias].shape) != 1:
            continue
        channel = made.record("dimension_numbers")["output_feature_dimension"]
        if isinstance(channel, int) and matcher.lies_along(added, channel):
            return replace(made, operands=(*made.operands, bias), results=operation.results)
    return None


def _layer_norm(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    """With scale or without; a bias is an operation that follows."""
    if operation.name not in ("add", "multiply"):
        return None
    result = operation.results[0]
    if operation.name == "add" and (longer := _with_bias(operation, matcher, listing)) is not None:
        return longer
    for variance in _VARIANCES:
        inverse: Pattern = ("rsqrt", ("add", variance, "eps"))
        for pattern, vectors_of in (
            (("multiply", _CENTRED, ("multiply", inverse, "scale")), ("scale",)),
            (("multiply", _CENTRED, inverse), ()),
        ):
            found = matcher.found(result, pattern)
            if found is None:
                continue
            x = found["x"]
            shape, eps = listing.types[x].shape, matcher.number(found["eps"])
            vectors = [found[name] for name in vectors_of]
            if eps is None or listing.types[result].shape != shape or matcher.number(found["n"]) != shape[-1]:
                continue
            if any(listing.types[vector].shape != shape[-1:] for vector in vectors):
                continue
            if not _over(shape, (len(shape) - 1,), matcher, listing, x, result) or not _scaled_along_last(
                operation, matcher, vectors, shape
            ):
                continue
            attributes = {"eps": eps, "scale": bool(vectors), "bias": False}
            return replace(operation, name="layer_norm", operands=(x, *vectors), attributes=attributes)
    return None


def _scaled_along_last(operation: Operation, matcher: Matcher, vectors: Sequence[int], shape: tuple[int, ...]) -> bool:
    made = (matcher.made_by.get(matcher.bare(value)) for value in operation.operands)
    scales = [value for each in made if each is not None for value in each.operands if matcher.bare(value) in vectors]
    return all(matcher.lies_along(value, len(shape) - 1) for value in scales)


def _with_bias(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    """A layer norm without bias to which one is added."""
    for normed, added in (operation.operands, operation.operands[::-1]):
        made, bias = matcher.made_by.get(normed), matcher.bare(added)
        shape = listing.types[normed].shape
        if not matcher.lies_along(added, len(shape) - 1):
            continue
        if made is not None and made.name == "layer_norm" and not made.attributes["bias"] and listing.types[bias].shape == shape[-1:]:
            return replace(operation, name="layer_norm", operands=(*made.operands, bias), attributes={**made.attributes, "bias": True})
    return None


def _softmax(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    if operation.name != "divide" or (found := matcher.found(operation.results[0], _SOFTMAX)) is None:
        return None
    result = operation.results[0]
    exponentials = matcher.made_by[matcher.bare(operation.operands[0])]
    x = matcher.made_by[matcher.bare(exponentials.operands[0])].operands[0]
    dims = matcher.made_by[matcher.bare(operation.operands[1])].ints("dimensions")
    shape = listing.types[result].shape
    if (
        listing.types[x].shape != shape
        or matcher.bare(x) != found["x"]
        or len(dims) != 1
        or not _over(shape, dims, matcher, listing, found["x"], result)
    ):
        return None
    return replace(operation, name="softmax", operands=(x,), attributes={"dim": dims[0]})


def _cross_entropy(operation: Operation, matcher: Matcher, listing: Listing) -> Operation | None:
    """log sum exp(x) - x[label] over the last dim, from the look-up of all labels."""
    if operation.name != "subtract":
        return None
    picked = matcher.made_by.get(matcher.bare(operation.operands[1]))
    if picked is None or picked.name != "gather":
        return None
    x = matcher.bare(picked.operands[0])
    shape = listing.types[x].shape
    numbers = picked.record("dimension_numbers")
    of_last = numbers["start_index_map"] == (len(shape) - 1,) and numbers["operand_batching_dims"] == tuple(range(len(shape) - 1))
    batched = numbers["start_indices_batching_dims"] == tuple(range(len(shape) - 1))
    if not of_last or not batched or listing.types[operation.results[0]].shape != shape[:-1]:
        return None
    labels = matcher.bare(picked.operands[1])
    if long_dims(listing.types[labels].shape) != long_dims(shape[:-1]):
        return None
    for pattern in _LOG_SUM:
        if matcher.found(operation.operands[0], pattern, {"x": x}) and _over(
            shape, (len(shape) - 1,), matcher, listing, x, operation.operands[0]
        ):
            return replace(operation, name="cross_entropy", operands=(x, labels), attributes={})
    return None


def _over(shape: tuple[int, ...], dims: tuple[int, ...], matcher: Matcher, listing: Listing, x: int, result: int) -> bool:
    """Whether all sums and maxima between x and the result are over these dims of ``shape``, dims of extent 1 left out of account."""
    waiting, seen = [result], {x}
    wanted = _places(shape, dims)
    while waiting:
        value = waiting.pop()
        operation = matcher.made_by.get(value)
        if value in seen or operation is None:
            continue
        seen.add(value)
        if operation.name == "reduce":
            given = operation.operands[0]
            extents = listing.types[given].shape
            if long_dims(extents) != long_dims(listing.types[matcher.bare(given)].shape):
                return False
            if len(long_dims(extents)) != len(long_dims(shape)) or _places(extents, operation.ints("dimensions")) != wanted:
                return False
        if operation.name not in ("gather", "constant"):
            waiting.extend(operand for operand in operation.operands if _reaches(matcher, operand, x))
    return True


def _places(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Which of the dims longer than 1 these are."""
    long = [dim for dim, extent in enumerate(shape) if extent != 1]
    return [long.index(dim) for dim in dims if dim in long]


def _reaches(matcher: Matcher, value: int, x: int) -> bool:
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if value == x:
            return True
        if value not in seen and (operation := matcher.made_by.get(value)) is not None:
            seen.add(value)
            waiting.extend(operation.operands)
        if len(seen) > 64:
            return False
    return False
