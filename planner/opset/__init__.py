"""The table of ops: a factor rule for each target, from which its SBP signatures follow, its flop and the bytes it moves.

To add an op, add one row to the ``TABLE`` of its family and one case to ``tests/cases/opset_cases``.  The tests run every signature
that the rule gives (SEMANTICS 1.6).  An op of torch that has no row takes and gives whole tensors (without_rule.py).  This room does not
import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planner.ir.errors import InvalidPlan
from planner.ir.graph import Arg, Op
from planner.ir.sbp import Sbp, Split
from planner.ir.tensor import TensorType
from planner.opset import creation, elementwise, index, layers, linalg, norm, optimizer, reduce, view
from planner.opset.layers import has_place
from planner.opset.rule import FactorRule, Signature, derive
from planner.opset.signal import conv, plane, spectral
from planner.opset.spec import Kind, OpSpec, integer, join_tables
from planner.opset.without_rule import how_to_add, spec_without_rule

__all__ = [
    "FactorRule",
    "Signature",
    "factor_rule",
    "flop",
    "has_place",
    "how_to_add",
    "is_creation",
    "is_view",
    "known_targets",
    "local_types",
    "localize",
    "readers_with_views",
    "signatures",
    "traffic_bytes",
]

_TABLE = join_tables(
    elementwise.TABLE,
    linalg.TABLE,
    reduce.TABLE,
    view.TABLE,
    norm.TABLE,
    *layers.TABLES,
    index.TABLE,
    conv.TABLE,
    plane.TABLE,
    spectral.TABLE,
    optimizer.TABLE,
    creation.TABLE,
)


_KNOWN = frozenset(_TABLE)


def _spec(op: Op) -> OpSpec:
    return _TABLE.get(op.target) or spec_without_rule(op)


def factor_rule(op: Op, types: Mapping[str, TensorType]) -> FactorRule:
    """The factor rule of the op on these shapes.

    Raises:
        UnknownOp: the target is neither in the table nor one of torch's; the message says how to add it.
    """
    return _spec(op).rule(op, types)


def signatures(op: Op, types: Mapping[str, TensorType], parts: int, rule: FactorRule | None = None) -> tuple[Signature, ...]:
    """The legal signatures of the op on one mesh axis (SEMANTICS 1.4): all-B first, in a fixed order, none twice, only even splits.

    For a mesh of several axes, call it once per axis, each time with the types that are local to the axes before (SEMANTICS 1.5).

    Args:
        types: type of every value the op reads or writes, local w.r.t. the axes cut before.
        parts: number of devices on the axis.
        rule: the op's factor_rule on these types, from a caller that has it.

    Raises:
        UnknownOp: the target is neither in the table nor one of torch's; the message says how to add it.
    """
    return derive(rule or factor_rule(op, types), op, types, parts)


def local_types(op: Op, signature: Signature, types: Mapping[str, TensorType], parts: int) -> dict[str, TensorType]:
    """Types of the op's outputs on one part.

    Raises:
        InvalidPlan: the signature cuts a dim unevenly.
    """
    return {
        name: _local(types[name], sbp, parts, op)
        for name, sbp in zip(op.outputs, signature.outputs, strict=True)
        if name is not None and sbp is not None
    }


def localize(op: Op, signature: Signature, types: Mapping[str, TensorType], parts: int, rule: FactorRule | None = None) -> Op:
    """The same op with the sizes in its arguments rewritten for one part; nothing else changes.   rule: as in signatures().

    Raises:
        InvalidPlan: the signature cuts a dim unevenly.
        UnknownOp: the target is neither in the table nor one of torch's.
    """
    rule = rule or factor_rule(op, types)
    if rule.cuts is not None:
        lies, before = signature.outputs[0], op.args[rule.cuts]
        assert isinstance(before, tuple)
        op = _with_argument(op, rule.cuts, "cuts", (*before, lies.dim if isinstance(lies, Split) else -1))
    for size in rule.sizes:
        if size.operand is not None:
            whole = types[op.inputs[size.operand]]
            sbp: Sbp | None = signature.inputs[size.operand]
        else:
            name = op.outputs[size.result]
            assert name is not None, "a rule takes sizes only from an output that is read"
            whole, sbp = types[name], signature.outputs[size.result]
        shape = _local(whole, sbp, parts, op).shape
        dims = tuple(range(len(shape))) if size.dims is None else size.dims
        value: Arg = tuple(shape[d] for d in dims)
        if size.shrinks:
            value = integer(op, size.arg, size.name, 1) * shape[dims[0]] // whole.shape[dims[0]]
        op = _with_argument(op, size.arg, size.name, value)
    return op


def _local(whole: TensorType, sbp: Sbp | None, parts: int, op: Op) -> TensorType:
    if not isinstance(sbp, Split):
        return whole
    shape, dim = list(whole.shape), sbp.dim
    if dim >= len(shape) or shape[dim] % parts or shape[dim] < parts:
        raise InvalidPlan(f"{op.where()}: {whole} cannot be cut into {parts} equal parts by {sbp}; take a signature from signatures()")
    shape[dim] //= parts
    return whole.with_shape(tuple(shape))


def _with_argument(op: Op, position: int, name: str, value: Arg) -> Op:
    if position < len(op.args):
        return replace(op, args=(*op.args[:position], value, *op.args[position + 1 :]))
    return replace(op, kwargs=tuple((k, value if k == name else v) for k, v in op.kwargs))


def flop(op: Op, types: Mapping[str, TensorType]) -> int:
    """Floating-point operations of the op on these types: 2 m n k for a matrix product, about one per element otherwise, 0 for views."""
    return _spec(op).flop(op, types)


def traffic_bytes(op: Op, types: Mapping[str, TensorType]) -> int:
    """Bytes read and written on these types; 0 for views."""
    return 0 if is_view(op) else _spec(op).traffic(op, types)


def is_view(op: Op) -> bool:
    """True if the output aliases the input, so that the op moves nothing."""
    return _spec(op).kind is Kind.VIEW


def readers_with_views(readers: Mapping[str, Sequence[Op]], value: str) -> Iterator[Op]:
    """Ops that read a value or a view of it: a view is made anew wherever it is read.

    Args:
        readers: value -> the ops that read it itself.
    """
    waiting, seen = [value], {value}
    while waiting:
        for op in readers.get(waiting.pop(), ()):
            yield op
            if op.target in known_targets() and is_view(op):
                fresh = [out for out in op.outputs if out is not None and out not in seen]
                seen.update(fresh)
                waiting.extend(fresh)


def is_creation(op: Op) -> bool:
    """True if the op makes a tensor of no other (full, arange, a random draw ...)."""
    return _spec(op).kind is Kind.CREATION


def known_targets() -> frozenset[str]:
    """Targets that have a rule; any other op of torch takes and gives whole tensors."""
    return _KNOWN
