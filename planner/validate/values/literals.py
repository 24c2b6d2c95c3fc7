"""The arguments of an op as keys: equal keys, equal arguments, whatever the names of the values."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from planner.ir.graph import Arg, Dt, Op, Ref

__all__ = ["Key", "arguments_key", "operand_places"]

Key = Hashable


def arguments_key(op: Op, operand: Callable[[str], int]) -> Key:
    """The key of all arguments.  Of equal numbers of different types (1, 1.0, True) the keys differ.

    Args:
        operand: what stands in the key for a value.
    """
    return tuple(_key(arg, operand) for arg in op.args), tuple((name, _key(arg, operand)) for name, arg in op.kwargs)


def _key(arg: Arg, operand: Callable[[str], int]) -> Key:
    match arg:  # a tuple of arguments never begins with a bare text, so no argument looks like a mark
        case None:
            return None
        case bool():
            return ("bool", arg)
        case int():
            return arg
        case float():
            return ("float", repr(arg))
        case str():
            return ("text", arg)
        case Ref(value):
            return ("value", operand(value))
        case Dt(dtype):
            return ("dtype", dtype.value)
        case tuple():
            return tuple(_key(item, operand) for item in arg)


def operand_places(op: Op) -> tuple[int, ...]:
    """Per operand the number of its name, by first occurrence: x * x has (0, 0), x * y has (0, 1)."""
    places: dict[str, int] = {}
    return tuple(places.setdefault(value, len(places)) for value in op.inputs)
