"""A snapshot of the Python state that a module can reach, to compare it with and put it back after a trace: attributes, containers, globals.

    with Snapshot(...) taken --> trace --> changes(): what differs, by name --> restore(): the same objects with the same contents

Parameters and buffers are not copied: the tracer never writes into them (it runs on stand-ins).  A tensor of another kind, or an array, is
copied, since tracing computes with it for real.  Objects of torch and of the standard library are not looked into, modules and containers aside.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from types import CellType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["ABSENT", "Change", "Snapshot"]

ABSENT = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What differs now.  path: how the user names the place (``h.0.calls``, ``seen[2]``).  before, now: what was and is there (or ABSENT).

    lasting: it cannot be put back (an iterator that moved on).   write: sets what is there; None: not by itself.
    """

    path: str
    before: object
    now: object
    lasting: bool = False
    write: Callable[[object], None] | None = None


class _Holder(Protocol):
    """A place with contents: what they were is kept with it."""

    def changes(self) -> Iterator[Change]: ...

    def restore(self) -> None: ...


def _same(a: object, b: object) -> bool:
    """The same object; or, of plain kinds and built-in containers, one with the same contents: nobody can tell them apart by computing."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return isinstance(a, int | float | str | bytes | complex) and bool(a == b)


class _Items:
    """A dict: of an object's attributes, or one that the user made."""

    def __init__(self, held: dict[Any, Any], name_of: Callable[[object], str]) -> None:
        self._held, self._before, self._name_of = held, dict(dict.items(held)), name_of

    def changes(self) -> Iterator[Change]:
        for key, now in dict.items(self._held):
            before = self._before.get(key, ABSENT)
            if not _same(before, now):
                write = functools.partial(dict.__setitem__, self._held, key)
                yield Change(path=self._name_of(key), before=before, now=now, write=write)
        for key in self._before.keys() - dict.keys(self._held):
            yield Change(path=self._name_of(key), before=self._before[key], now=ABSENT)

    def restore(self) -> None:
        held = list(dict.items(self._held))
        if len(held) == len(self._before) and all(a is b and x is y for (a, x), (b, y) in zip(held, self._before.items(), strict=True)):
            return
        base = OrderedDict if isinstance(self._held, OrderedDict) else dict  # not a subclass's own way of setting items
        base.clear(self._held)
        for key, value in self._before.items():
            base.__setitem__(self._held, key, value)


class _Sequence:
    """A list, a deque or a set."""

    def __init__(self, held: list[object] | deque[object] | set[object], path: str) -> None:
        self._held, self._before, self._path = held, list(held), path

    def changes(self) -> Iterator[Change]:
        now = list(self._held)
        if isinstance(self._held, set):
            if self._held != set(self._before):
                yield Change(path=self._path, before=f"{len(self._before)} elements", now=f"{len(now)} elements")
            return
        for index, (before, value) in enumerate(zip(self._before, now, strict=False)):
            if not _same(before, value):
                write = functools.partial(self._held.__setitem__, index)
                yield Change(path=f"{self._path}[{index}]", before=before, now=value, write=write)
        for index in range(len(self._before), len(now)):
            yield Change(path=f"{self._path}[{index}]", before=ABSENT, now=now[index])
        if len(now) < len(self._before):
            yield Change(path=self._path, before=f"{len(self._before)} items", now=f"{len(now)} items")

    def restore(self) -> None:
        now = list(self._held)
        in_order = len(now) == len(self._before) and all(map(operator.is_, now, self._before))
        if in_order or (isinstance(self._held, set) and self._held == set(self._before)):
            return
        self._held.clear()
        (self._held.update if isinstance(self._held, set) else self._held.extend)(self._before)


class _Place:
    """One value behind a name: a closure's cell, a class attribute, a global, a slot."""

    def __init__(self, path: str, read: Callable[[], object], write: Callable[[object], None]) -> None:
        self._path, self._read, self._write, self._before = path, read, write, read()

    def changes(self) -> Iterator[Change]:
        if not _same(self._before, now := self._read()):
            yield Change(path=self._path, before=self._before, now=now, write=self._write)

    def restore(self) -> None:
        if self._read() is not self._before:
            self._write(self._before)


class _Values:
    """The values of a tensor that is no state of the graph, or of an array."""

    def __init__(self, path: str, tensor: Tensor) -> None:
        self._path, self._tensor, self._version, self._before = path, tensor, tensor._version, tensor.detach().clone()

    def changes(self) -> Iterator[Change]:
        if self._tensor._version != self._version:
            yield Change(path=self._path, before="its values", now="other values")

    def restore(self) -> None:
        if self._tensor._version != self._version:
            self._tensor.detach().copy_(self._before)


class _Array:
    def __init__(self, path: str, array: NDArray[Any]) -> None:
        self._path, self._array, self._before = path, array, array.copy()

    def changes(self) -> Iterator[Change]:
        if self._array.tobytes() != self._before.tobytes():
            yield Change(path=self._path, before="its values", now="other values")

    def restore(self) -> None:
        if self._array.flags.writeable:
            self._array[...] = self._before


class _Iterator:
    """How far a generator or an itertools.count is; it can be seen, not set."""

    def __init__(self, path: str, iterator: GeneratorType[object, object, object] | count[int]) -> None:
        self._path, self._iterator, self._before = path, iterator, _progress(iterator)

    def changes(self) -> Iterator[Change]:
        if (now := _progress(self._iterator)) != self._before:
            yield Change(path=self._path, before=self._before, now=now, lasting=True)

    def restore(self) -> None:
        pass


def _progress(iterator: GeneratorType[object, object, object] | count[int]) -> str:
    if isinstance(iterator, count):
        return repr(iterator)
    frame = iterator.gi_frame
    return "its end" if frame is None else f"instruction {frame.f_lasti}, {dict(frame.f_locals)}"


class Snapshot:
    """What is reachable from the roots, recorded when it is made.

    Args:
        roots: name -> module, loss or the like; the name begins the paths.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._holders: list[_Holder] = []
        self._seen: dict[int, object] = {}  # by identity, and held so that an identity stays its owner's
        self._state: set[int] = set()
        self._waiting: list[tuple[str, object]] = list(roots.items())
        for root in roots.values():
            if isinstance(root, nn.Module):
                self._state.update(map(id, [*root.parameters(), *root.buffers()]))
        while self._waiting:
            path, value = self._waiting.pop()
            if id(value) not in self._seen and not isinstance(value, _NOT_LOOKED_INTO):
                self._seen[id(value)] = value
                self._visit(path, value)

    def changes(self) -> list[Change]:
        """What differs from the snapshot, in no order that matters."""
        return [change for holder in self._holders for change in holder.changes()]

    def restore(self) -> None:
        """Every place holds again the very objects that it held."""
        for holder in self._holders:
            holder.restore()

    def _visit(self, path: str, value: object) -> None:
        match value:
            case Tensor():
                if id(value) not in self._state and _has_values(value):
                    self._holders.append(_Values(path, value))
            case np.ndarray():
                self._holders.append(_Array(path, value))
            case dict():
                self._items(value, lambda key: f"{path}[{key!r}]")
            case list() | deque() | set():
                self._holders.append(_Sequence(value, path))
                self._waiting += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
            case tuple() | frozenset():
                self._waiting += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
            case functools.partial():
                self._waiting += [(path, value.func), (path, value.args), (path, value.keywords)]
            case MethodType():
                self._waiting += [(path, value.__self__), (path, value.__func__)]
            case GeneratorType() | count():
                self._holders.append(_Iterator(path, value))
            case FunctionType():
                self._function(path, value)
            case _:
                self._object(path, value)

    def _items(self, held: dict[Any, Any], name_of: Callable[[object], str]) -> None:
        self._holders.append(_Items(held, name_of))
        self._waiting += [(name_of(key), item) for key, item in dict.items(held)]

    def _function(self, path: str, function: FunctionType) -> None:
        if _is_of_torch_or_python(function.__module__):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cell(name, cell)
        self._waiting += [(path, function.__defaults__ or ()), (path, function.__kwdefaults__ or {}), (path, function.__dict__)]
        spaces = function.__globals__
        for name in function.__code__.co_names:
            held = spaces.get(name)
            if isinstance(held, _DATA):
                self._place(name, functools.partial(spaces.__getitem__, name), functools.partial(spaces.__setitem__, name))
            elif isinstance(held, FunctionType) and held.__globals__ is spaces:
                self._waiting.append((name, held))

    def _cell(self, name: str, cell: CellType) -> None:
        try:
            held = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        self._place(name, lambda: cell.cell_contents, functools.partial(setattr, cell, "cell_contents"))
        self._waiting.append((name, held))

    def _place(self, path: str, read: Callable[[], object], write: Callable[[object], None]) -> None:
        place = _Place(path, read, write)
        self._holders.append(place)
        self._waiting.append((path, read()))

    def _object(self, path: str, value: object) -> None:
        kind = type(value)
        if isinstance(value, nn.Module):
            self._module(path, value)
        elif _is_of_torch_or_python(kind.__module__) and kind is not SimpleNamespace:
            return
        elif isinstance(held := getattr(value, "__dict__", None), dict):
            self._items(held, lambda key: f"{path}.{key}".lstrip("."))
        for base in kind.__mro__:
            if not _is_of_torch_or_python(base.__module__) and id(base) not in self._seen:
                self._seen[id(base)] = base
                self._class(base)
        for slot in (name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)):
            self._place(f"{path}.{slot}".lstrip("."), functools.partial(getattr, value, slot), functools.partial(setattr, value, slot))

    def _module(self, path: str, module: nn.Module) -> None:
        def inner(key: object) -> str:
            return f"{path}.{key}".lstrip(".")

        self._holders.append(_Items(module.__dict__, inner))
        for key, item in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules"):
                if item is not None and id(item) not in self._seen:
                    self._seen[id(item)] = item
                    self._items(item, inner)  # a.weight, and not a._parameters['weight']
            else:
                self._waiting.append((inner(key), item))

    def _class(self, kind: type) -> None:
        for name, held in list(vars(kind).items()):
            if isinstance(held, FunctionType | staticmethod | classmethod):
                self._waiting.append((name, getattr(held, "__func__", held)))
            elif isinstance(held, _DATA) and not name.startswith("__"):
                self._place(f"{kind.__name__}.{name}", functools.partial(vars(kind).get, name), functools.partial(setattr, kind, name))


_DATA = (bool, int, float, str, list, dict, set, deque, Tensor, np.ndarray)
_NOT_LOOKED_INTO = (int, float, complex, str, bytes, type, ModuleType, type(None), torch.dtype, torch.device)
_PYTHON = frozenset(sys.stdlib_module_names) - {"__main__"}


def _is_of_torch_or_python(module: object) -> bool:
    """True for what belongs to torch, numpy or the standard library: the user's state is not in there."""
    root = str(module).partition(".")[0]
    return root in _PYTHON or root in ("torch", "numpy")


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__"))


def _has_values(tensor: Tensor) -> bool:
    return not tensor.is_meta and not isinstance(tensor, torch._subclasses.FakeTensor) and type(tensor) in (Tensor, nn.Parameter)
