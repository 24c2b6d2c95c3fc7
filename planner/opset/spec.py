"""The description of one op (factor rule, kind, flop, bytes moved), and helpers that the families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from planner.ir.errors import InvalidProgram
from planner.ir.graph import Arg, Op, Ref
from planner.opset.rule import FactorRule, Factors, Types

__all__ = [
    "Kind",
    "OpSpec",
    "argument",
    "dim_of",
    "dims_of",
    "elementwise_flop",
    "integer",
    "is_ref",
    "join_tables",
    "labels",
    "no_flop",
    "read_write_bytes",
    "result_shape",
    "shape_of",
    "written_bytes",
]


class Kind(Enum):
    """COMPUTE does work, VIEW aliases its input, CREATION makes a tensor of no other: of literals, or of a random draw."""

    COMPUTE = "compute"
    VIEW = "view"
    CREATION = "creation"


def elementwise_flop(op: Op, types: Types) -> int:
    """One operation per element of the largest tensor read or written."""
    return max((types[v].numel for v in (*op.inputs, *op.outputs) if v is not None), default=0)


def no_flop(op: Op, types: Types) -> int:
    return 0


def written_bytes(op: Op, types: Types) -> int:
    return sum(types[v].size_bytes for v in op.outputs if v is not None)


def read_write_bytes(op: Op, types: Types) -> int:
    """Every operand read once (a repeated value once), every output written once."""
    return sum(types[v].size_bytes for v in dict.fromkeys(op.inputs)) + written_bytes(op, types)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One row of the table.  rule: its factors.  flop, traffic: operations, and bytes moved, on given types."""

    rule: Callable[[Op, Types], FactorRule]
    kind: Kind = Kind.COMPUTE
    flop: Callable[[Op, Types], int] = elementwise_flop
    traffic: Callable[[Op, Types], int] = read_write_bytes


def argument(op: Op, position: int, name: str, default: Arg = None) -> Arg:
    """An argument by position, else by keyword, else the default of the aten schema."""
    return op.args[position] if position < len(op.args) else dict(op.kwargs).get(name, default)


def integer(op: Op, position: int, name: str, default: int) -> int:
    """An integer argument (a flag counts as 0 or 1).

    Raises:
        InvalidProgram: the argument is not an integer.
    """
    value = argument(op, position, name, default)
    if value is None:
        return default
    if isinstance(value, int):
        return value
    raise InvalidProgram(f"{op.where()}: argument {name} is {value!r}, an integer is needed")


def dim_of(op: Op, position: int, name: str, default: int, ndim: int) -> int:
    """A dim argument, counted from the front."""
    return integer(op, position, name, default) % max(ndim, 1)


def dims_of(op: Op, position: int, name: str, ndim: int) -> tuple[int, ...]:
    """A dim-list argument counted from the front; None and () mean every dim (the convention of the aten reductions)."""
    value = argument(op, position, name)
    if value is None or value == ():
        return tuple(range(ndim))
    items = value if isinstance(value, tuple) else (value,)
    return tuple(sorted(int(d) % max(ndim, 1) for d in items if isinstance(d, int)))


def shape_of(op: Op, types: Types, operand: int) -> tuple[int, ...]:
    return types[op.inputs[operand]].shape


def result_shape(op: Op, types: Types, result: int = 0) -> tuple[int, ...]:
    """Shape of an output.

    Raises:
        InvalidProgram: that output has no name, so its shape is unknown.
    """
    name = op.outputs[result]
    if name is None:
        raise InvalidProgram(f"{op.where()}: output {result} has no name, so its shape is unknown; name it or drop the op")
    return types[name].shape


def labels(ndim: int, prefix: str = "d") -> Factors:
    """One factor per dim: d0, d1, ..."""
    return tuple(f"{prefix}{d}" for d in range(ndim))


def is_ref(op: Op, position: int, name: str) -> bool:
    return isinstance(argument(op, position, name), Ref)


def join_tables(*tables: dict[str, OpSpec]) -> dict[str, OpSpec]:
    """One table of all rows; no target may stand in two families."""
    joined: dict[str, OpSpec] = {}
    for table in tables:
        assert not joined.keys() & table.keys(), f"two rules for {sorted(joined.keys() & table.keys())}"
        joined |= table
    return joined
