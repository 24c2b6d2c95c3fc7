"""Decode JSON data into values of annotated types, and say where in a file something does not fit its type.

One decoder per type is made, when the type is first met.  The path to a misfit is put together only when there is one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.graph import Arg, Dt, Ref
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType

__all__ = ["decode", "field_types"]

Decoder = Callable[[object], typing.Any]
_FLOATS = ("inf", "-inf", "nan")


class _Misfit(Exception):
    """Raised where data does not fit its type.

    Args:
        said: what is wrong, without where.

    Attributes:
        steps: of the path to it, such as ``.name`` and ``[3]``, the innermost first; every container on the way out adds its own.
    """

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.steps: list[str] = []


def decode(kind: object, data: object, where: str = "") -> typing.Any:
    """Decode JSON data into a value of the annotated type.

    Args:
        kind: a type annotation (dataclass, Enum, tuple[X, ...], Mapping[str, X], unions, scalars).
        where: path inside the file, for messages.

    Raises:
        InvalidFile: naming the path, what the schema expects and what stands there.
    """
    try:
        return _decoder(kind)(data)
    except _Misfit as misfit:
        path = where + "".join(reversed(misfit.steps))
        raise InvalidFile(f"{(path if where else path.removeprefix('.')) or 'file'}: {misfit}") from misfit.__cause__


def _misfit(want: str, got: object) -> _Misfit:
    shown = json.dumps(got, default=str)
    return _Misfit(f"expected {want}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")


@functools.cache
def field_types(kind: type) -> dict[str, object]:
    """The type of each field of a dataclass, by name, as an object instead of the text of its annotation."""
    return typing.get_type_hints(kind)


@functools.cache
def _decoder(kind: object) -> Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    # Arg names itself, and get_type_hints unrolls that once: the resolved annotation is no longer equal to Arg.
    if origin in (typing.Union, types.UnionType) and Ref in arguments:
        return _arg
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return functools.partial(_list_of, arguments[0], _decoder(arguments[0]))
        return functools.partial(_list_of_each, [_decoder(argument) for argument in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return functools.partial(_mapping, _decoder(arguments[1]))
    if origin in (typing.Union, types.UnionType):
        members = [argument for argument in arguments if argument is not type(None)]
        return functools.partial(_member, members, type(None) in arguments)
    if isinstance(kind, type):
        if kind is NdSbp:
            return _layout
        if issubclass(kind, Enum):
            return functools.partial(_enum, kind)
        if dataclasses.is_dataclass(kind):
            return _Record(kind)
        return functools.partial(_scalar, kind)
    raise TypeError(f"no decoder for {kind}")


def _list_of(kind: object, item: Decoder, data: object) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise _misfit("a list", data)
    if kind in (int, str) and all(type(value) is kind for value in data):
        return tuple(data)  # most lists of a Plan, and nothing is to be done to their items
    return _in_order(itertools.repeat(item), data)


def _list_of_each(items: list[Decoder], data: object) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise _misfit("a list", data)
    if len(items) != len(data):
        raise _misfit(f"a list of {len(items)}", data)
    return _in_order(items, data)


def _in_order(items: Iterable[Decoder], data: list[object]) -> tuple[object, ...]:
    decoded: list[object] = []
    try:
        for item, value in zip(items, data, strict=False):
            decoded.append(item(value))
    except _Misfit as misfit:
        misfit.steps.append(f"[{len(decoded)}]")
        raise
    return tuple(decoded)


def _mapping(item: Decoder, data: object) -> dict[str, object]:
    if not isinstance(data, dict):
        raise _misfit("an object", data)
    return _by_key((key, item, value) for key, value in data.items())


def _by_key(entries: Iterable[tuple[str, Decoder, object]]) -> dict[str, object]:
    decoded, key = {}, ""
    try:
        for key, item, value in entries:
            decoded[key] = item(value)
    except _Misfit as misfit:
        misfit.steps.append(f".{key}")
        raise
    return decoded


def _member(members: list[object], or_none: bool, data: object) -> object:
    if data is None and or_none:
        return None
    if len(members) == 1:
        return _decoder(members[0])(data)
    name = data.get("is") if isinstance(data, dict) else None
    for member in members:
        if dataclasses.is_dataclass(member) and getattr(member, "__name__", "") == name:
            return _decoder(typing.cast(type, member))(data)
    raise _misfit(f"one of {[getattr(member, '__name__', str(member)) for member in members]}", data)


class _Record:
    """Decoder of a dataclass, from a JSON object with its fields.

    The decoders of the fields are made when the first object is decoded, because a dataclass may have a field of its own type.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @functools.cached_property
    def _fields(self) -> dict[str, Decoder]:
        types_of = field_types(self._kind)
        return {field.name: _decoder(types_of[field.name]) for field in dataclasses.fields(self._kind)}

    @functools.cached_property
    def _asked(self) -> frozenset[str]:
        return frozenset(field.name for field in dataclasses.fields(self._kind) if field.metadata.get("omitted") is None)

    def __call__(self, data: object) -> object:
        kind, fields = self._kind, self._fields
        if not isinstance(data, dict):
            raise _misfit(f"an object ({kind.__name__})", data)
        given = data.keys() - {"is"}
        if not (self._asked <= given <= fields.keys()) or data.get("is", kind.__name__) != kind.__name__:
            unknown, missing = sorted(given - fields.keys()), sorted(self._asked - given)
            raise _misfit(f"a {kind.__name__} (missing fields {missing}, unknown fields {unknown})", data)
        decoded = _by_key((name, fields[name], data[name]) for name in given)
        try:
            return kind(**decoded)
        except RegistaError as error:
            raise _Misfit(str(error)) from error


def _layout(data: object) -> object:
    if not isinstance(data, str):
        raise _misfit("a layout such as S(0),B", data)
    try:
        return NdSbp.parse(data)
    except RegistaError as error:
        raise _Misfit(str(error)) from error


def _enum(kind: type[Enum], data: object) -> Enum:
    try:
        return kind(data)
    except ValueError:
        raise _misfit(f"one of {[member.value for member in kind]}", data) from None


def _scalar(kind: type, data: object) -> object:
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if kind is float and isinstance(data, dict) and list(data) == ["float"] and data["float"] in _FLOATS:
        return float(data["float"])  # a loss may be: training that diverged is a result too
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise _misfit(kind.__name__, data)


def _arg(data: object) -> Arg:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list):
        return tuple(map(_arg, data))
    if isinstance(data, dict) and len(data) == 1:
        (key, item), *_ = data.items()
        if key == "ref" and isinstance(item, str):
            return Ref(item)
        if key == "dtype" and isinstance(item, str):
            return Dt(DType.parse(item))
        if key == "float" and item in _FLOATS:
            return float(item)
    raise _misfit("an op argument", data)
