"""JSON data -> values of annotated types.  A decoder per type is made once; where something does not fit is worked out only when it does not."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.graph import Arg, Dt, Ref
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType

__all__ = ["decode", "field_types"]

Decoder = Callable[[object], typing.Any]
_FLOATS = ("inf", "-inf", "nan")


class _Unfit(Exception):
    """law: what is said of it, of its path.   steps: of the path, the innermost first; whoever passes it on adds one."""

    def __init__(self, law: Callable[[str], str]) -> None:
        super().__init__()
        self.law = law
        self.steps: list[str] = []


def decode(kind: object, data: object, where: str = "") -> typing.Any:
    """JSON data -> a value of the annotated type.

    Args:
        kind: a type annotation (dataclass, Enum, tuple[X, ...], Mapping[str, X], unions, scalars).
        where: path inside the file, for messages.

    Raises:
        InvalidFile: naming the path, what the schema expects and what stands there.
    """
    try:
        return _decoder(kind)(data)
    except _Unfit as unfit:
        path = where + "".join(reversed(unfit.steps))
        raise InvalidFile(unfit.law(path if where else path.removeprefix("."))) from unfit.__cause__


def _unfit(want: str, got: object) -> _Unfit:
    shown = json.dumps(got, default=str)
    return _Unfit(lambda path: f"{path or 'file'}: expected {want}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")


@functools.cache
def field_types(kind: type) -> dict[str, object]:
    """The types of a dataclass' fields, resolved."""
    return typing.get_type_hints(kind)


@functools.cache
def _decoder(kind: object) -> Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    # Arg names itself, and get_type_hints unrolls that once: the resolved annotation is no longer equal to Arg.
    if origin in (typing.Union, types.UnionType) and Ref in arguments:
        return _arg
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return functools.partial(_items, _decoder(arguments[0]), _PLAIN.get(arguments[0]))
        return functools.partial(_places, [_decoder(argument) for argument in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return functools.partial(_mapping, _decoder(arguments[1]))
    if origin in (typing.Union, types.UnionType):
        members = [argument for argument in arguments if argument is not type(None)]
        return functools.partial(_member, members, type(None) in arguments)
    if isinstance(kind, type):
        if kind is NdSbp:
            return _layout
        if issubclass(kind, Enum):
            return functools.partial(_enum, kind, {member.value: member for member in kind})
        if dataclasses.is_dataclass(kind):
            return _Record(kind)
        return functools.partial(_scalar, kind)
    raise TypeError(f"no decoder for {kind}")


_PLAIN: dict[object, type] = {int: int, str: str}
"""Types of items that are taken as they are, all at once."""


def _items(item: Decoder, plain: type | None, data: object) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise _unfit("a list", data)
    if plain is not None and all(type(value) is plain for value in data):
        return tuple(data)
    decoded = []
    try:
        for value in data:
            decoded.append(item(value))
    except _Unfit as unfit:
        unfit.steps.append(f"[{len(decoded)}]")
        raise
    return tuple(decoded)


def _places(items: list[Decoder], data: object) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise _unfit("a list", data)
    if len(items) != len(data):
        raise _unfit(f"a list of {len(items)}", data)
    decoded = []
    try:
        for item, value in zip(items, data, strict=True):
            decoded.append(item(value))
    except _Unfit as unfit:
        unfit.steps.append(f"[{len(decoded)}]")
        raise
    return tuple(decoded)


def _mapping(item: Decoder, data: object) -> dict[str, object]:
    if not isinstance(data, dict):
        raise _unfit("an object", data)
    decoded, key = {}, ""
    try:
        for key, value in data.items():
            decoded[key] = item(value)
    except _Unfit as unfit:
        unfit.steps.append(f".{key}")
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
    raise _unfit(f"one of {[getattr(member, '__name__', str(member)) for member in members]}", data)


class _Record:
    """A dataclass from an object; its fields are looked at when the first one is read, since a type may name itself."""

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
            raise _unfit(f"an object ({kind.__name__})", data)
        given = data.keys() - {"is"}
        if not (self._asked <= given <= fields.keys()) or data.get("is", kind.__name__) != kind.__name__:
            unknown, missing = sorted(given - fields.keys()), sorted(self._asked - given)
            raise _unfit(f"a {kind.__name__} (missing fields {missing}, unknown fields {unknown})", data)
        decoded, name = {}, ""
        try:
            for name in given:
                decoded[name] = fields[name](data[name])
        except _Unfit as unfit:
            unfit.steps.append(f".{name}")
            raise
        try:
            return kind(**decoded)
        except RegistaError as error:
            raise _said(error, "file") from error


def _said(error: RegistaError, whole: str) -> _Unfit:
    text = str(error)
    return _Unfit(lambda path: f"{path or whole}: {text}")


def _layout(data: object) -> object:
    if not isinstance(data, str):
        raise _unfit(f"an object ({NdSbp.__name__})", data)
    try:
        return NdSbp.parse(data)
    except RegistaError as error:
        raise _said(error, "") from error


def _enum(kind: type[Enum], members: dict[object, Enum], data: object) -> Enum:
    try:
        return members[data]
    except (KeyError, TypeError):
        raise _unfit(f"one of {[member.value for member in kind]}", data) from None


def _scalar(kind: type, data: object) -> object:
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if kind is float and isinstance(data, dict) and list(data) == ["float"] and data["float"] in _FLOATS:
        return float(data["float"])  # a loss may be: training that diverged is a result too
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise _unfit(kind.__name__, data)


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
    raise _unfit("an op argument", data)
