"""Checks of values look at elements where they lie, and not at what was made of all of them.

    any(x) -> check(.., False)            becomes     check(x, False)             all(x) -> check(.., True)     becomes     check(x, True)
    max(x) < n -> check(.., True)         becomes     check(x < n, True)          also max <=, min >, min >= a number
    max(x) >= n -> check(.., False)       becomes     check(x >= n, False)        of integers: among floats a NaN hides all others

Whether any element of a tensor is true needs the tensor whole, each element by itself does not: so parts of a batch are checked on their devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.frontend.to_graph.finish import Body
from planner.frontend.tracing.checks.op import CHECK
from planner.ir.graph import Op, Ref
from planner.ir.tensor import DType, TensorType

__all__ = ["with_element_checks"]

_JOINED: Mapping[str, bool] = {"aten.any.default": False, "aten.all.default": True}
"""Target -> what a check of its result has to want, so that it can be made of the elements."""
_BELOW, _ABOVE = frozenset({"aten.lt.Scalar", "aten.le.Scalar"}), frozenset({"aten.gt.Scalar", "aten.ge.Scalar"})
_EXTREME: Mapping[str, Mapping[bool, frozenset[str]]] = {
    "aten.max.default": {True: _BELOW, False: _ABOVE},
    "aten.min.default": {True: _ABOVE, False: _BELOW},
}
"""Target -> what a check wants -> comparisons of its result that say so of each element."""


def with_element_checks(body: Body) -> Body:
    """The same micro-batch; joined values that nobody reads any more are still there."""
    makers = {value: op for op in body.ops for value in op.outputs if value is not None}
    types, places, ops = dict(body.types), dict(body.places), []
    for op in body.ops:
        made = _of_elements(op, makers, types) if op.target == CHECK else [op]
        ops += made
        places |= {new.id: places[op.id] for new in made}
    return replace(body, ops=tuple(ops), types=types, places=places)


def _of_elements(check: Op, makers: Mapping[str, Op], types: dict[str, TensorType]) -> list[Op]:
    """The check, with the comparison that it now looks at before it."""
    mask, wanted, text = check.args
    assert isinstance(mask, Ref) and isinstance(wanted, bool)
    made = makers.get(mask.value)
    if made is None or not made.inputs:
        return [check]
    elements = types[made.inputs[0]]
    if _JOINED.get(made.target) is wanted and elements.dtype is DType.BOOL:
        return [replace(check, args=(Ref(made.inputs[0]), wanted, text))]
    extreme = makers.get(made.inputs[0])
    if extreme is None or made.target not in _EXTREME.get(extreme.target, {}).get(wanted, ()):
        return [check]
    elements = types[extreme.inputs[0]]
    if not wanted and elements.dtype.is_floating:
        return [check]
    compared = f"{check.id}_elements"
    types[compared] = TensorType(elements.shape, DType.BOOL)
    each = replace(made, id=compared, args=(Ref(extreme.inputs[0]), *made.args[1:]), outputs=(compared,))
    return [each, replace(check, args=(Ref(compared), wanted, text))]
