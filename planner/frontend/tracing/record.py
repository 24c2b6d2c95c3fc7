"""The short way to trace: one dispatch mode under autograd writes the graph, and works every op out once per kind of operand.

    module --> autograd --> Recorder --+--> fx node                                   (every time)
                                       '--> FakeTensorMode: types of the results      (once per op, literals and operand types)

make_fx passes each op through three modes and wraps its results twice; in a model of many equal layers almost all of that work has
been done before.  What the short way leaves out (writes through views, tensors of foreign kinds, values asked for while tracing) it
refuses with Unfit, and the long way of trace.py takes over.  Where it does not refuse, the graph is the same, node for node.

A write in place is its functional twin, and the written tensor stands for the twin's result from then on:

    relu_(x)                                      x := relu(x)
    _native_batch_norm_legit(.., mean, var, ..)   y, m, s, mean, var := _native_batch_norm_legit_functional(.., mean, var, ..)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum

import torch
from torch import Tensor, fx, nn
from torch._decomp import _should_decompose_because_unsafe_op
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from planner.frontend.tracing.traced import Aliases, Kind, Traced, Unfit, geometry

__all__ = ["Recorder"]

aten = torch.ops.aten

_CPU = torch.device("cpu")


class _Way(Enum):
    """What becomes of an op: a decomposition (ours or torch's), a node, a node whose result is a view, or a write."""

    TABLE = 1
    COMPOSITE = 2
    NODE = 3
    VIEW = 4
    WRITE = 5


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes ``graph`` while it is entered.

    Args:
        table: op -> decomposition.
        stamp: called with every new node.

    ``constants`` holds the tensors that get_attr nodes name.
    """

    def __init__(self, table: Mapping[OpOverload, Callable[..., object]], stamp: Callable[[fx.Node], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self._table, self._stamp = table, stamp
        self._kinds: dict[object, Kind] = {}
        self._results: dict[tuple[object, ...], Kind | tuple[Kind | None, ...]] = {}
        self._ways: dict[tuple[OpOverload, bool], _Way] = {}
        self._names: dict[object, str] = {}
        self._constant_names: dict[int, str] = {}
        self._inputs: dict[tuple[torch.Size, torch.dtype], Kind] = {}
        self._decomposing = False

    def placeholder(self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> Traced:
        """An input of the graph; called while a fake mode is active."""
        kind = self._inputs.get((shape, dtype))
        if kind is None:
            kind = self._inputs[shape, dtype] = self._kind(torch.empty(shape, dtype=dtype))
        node = self.graph.placeholder("arg")
        node.meta["val"] = kind.example
        made = Traced.make(kind, node)
        made.requires_grad_(requires_grad)
        return made

    def output(self, results: Sequence[object]) -> None:
        """Closes the graph.

        Raises:
            Unfit: a result is not traced.
        """
        if not all(type(result) is Traced for result in results):
            raise Unfit("a result that was not computed in the step")
        self.graph.output([result.node for result in results if isinstance(result, Traced)])

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        way = self._ways.get((func, self._decomposing))
        if way is None:
            way = self._ways[func, self._decomposing] = self._way(func, args, kwargs)
        if way is _Way.NODE:
            return self._record(func, args, kwargs)
        if way is _Way.VIEW:
            return _joined(self._record(func, args, kwargs), args[0], func)
        if way is _Way.WRITE:
            return self._write(func, args, kwargs)
        with self:
            if way is _Way.COMPOSITE:
                return func.decompose(*args, **kwargs)
            before, self._decomposing = self._decomposing, True
            try:
                return self._table[func](*args, **kwargs)
            finally:
                self._decomposing = before

    def _way(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> _Way:
        """As make_fx: functionalization opens composite ops before the table is asked, and does not look into decompositions."""
        if not isinstance(func, OpOverload) or func.namespace == "prim":
            raise Unfit(f"{func} is no operator")
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.inplace_view in func.tags:
            raise Unfit(f"{func} asks for a value, or changes a type")
        composite = func._can_decompose() and (
            any(a.alias_info for a in func._schema.arguments)
            or _should_decompose_because_unsafe_op(func)
            or autograd_would_have_decomposed(func, [*_leaves(args), *_leaves(tuple(kwargs.values()))])
        )
        if func in self._table and (self._decomposing or not composite):
            return _Way.TABLE
        if composite:
            return _Way.COMPOSITE
        if func._schema.is_mutable:
            return _Way.WRITE
        if not any(r.alias_info for r in func._schema.returns):
            return _Way.NODE
        if not func._schema.arguments[0].alias_info:
            raise Unfit(f"{func} is a view of another operand than its first")
        return _Way.VIEW

    def _write(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """The functional twin; what the op writes stands for the twin's last results.

        Raises:
            Unfit: the op has no such twin, or the written tensor has other names.
        """
        twin, places = _functional_twin(func)
        written = [args[place] for place in places]
        if self._decomposing or not all(isinstance(t, Traced) and t.aliases.count == 1 for t in written):
            raise Unfit(f"{func} writes into a tensor that is no result of the step, or that has views")
        before, self._decomposing = self._decomposing, True  # functionalization calls the twin below itself
        try:
            made = self.__torch_dispatch__(twin, (), args, kwargs)
        finally:
            self._decomposing = before
        results = list(made) if isinstance(made, list | tuple) else [made]
        for old, new in zip(written, results[-len(written) :], strict=True):
            assert isinstance(old, Traced)
            if not isinstance(new, Traced) or new.kind is not old.kind or new.aliases.count != 1:
                raise Unfit(f"{func} writes another type than its tensor has")
            old.node, old.aliases.written = new.node, True
        kept = results[: -len(written)]
        return tuple(kept) if kept else written[0]

    def _record(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        key: list[object] = [func]
        node_args = tuple([self._seen(a, key) for a in args])
        node_kwargs = {}
        for name, arg in kwargs.items():
            key.append(name)
            node_kwargs[name] = self._seen(arg, key)
        if func is aten.lift_fresh.default:
            func = aten.lift_fresh_copy.default  # what is lifted is fresh, and stays so in the graph
        try:
            found = self._results.get(tuple(key))
        except TypeError:
            raise Unfit(f"{func} has an argument that cannot be compared") from None
        if found is None:
            found = self._results[tuple(key)] = self._worked_out(func, args, kwargs)
        if func not in self._names:
            self._names[func] = self.graph._target_to_str(func.overloadpacket.__name__)
        node = self._node(func, node_args, node_kwargs, self._names[func])
        if isinstance(found, Kind):
            node.meta["val"] = found.example
            return Traced.make(found, node)
        node.meta["val"] = [kind and kind.example for kind in found]
        made: list[Traced | None] = []
        for index, kind in enumerate(found):
            item = self._node(operator.getitem, (node, index), {}, "getitem")
            if kind is None:
                made.append(None)
                continue
            item.meta["val"] = kind.example
            made.append(Traced.make(kind, item))
        return made if _returns_list(func) else tuple(made)

    def _node(self, target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], name: str) -> fx.Node:
        node = self.graph.create_node("call_function", target, name=name)
        node.args = args  # type: ignore[assignment]  # afterwards: create_node walks its arguments slowly, for symbols that we never have
        if kwargs:
            node.kwargs = kwargs  # type: ignore[assignment]
        self._stamp(node)
        return node

    def _seen(self, arg: object, key: list[object]) -> object:
        """The argument as a node takes it; what the results' types depend on goes into ``key``."""
        found = type(arg)
        if found is Traced:
            key.append(arg.kind)  # type: ignore[attr-defined]
            return arg.node  # type: ignore[attr-defined]
        if found is list or found is tuple:
            key.append((found, len(arg)))  # type: ignore[arg-type]
            return [self._seen(item, key) for item in arg]  # type: ignore[attr-defined]
        if isinstance(arg, Tensor):
            node, kind = self._constant(arg)
            key.append(kind)
            return node
        key.append(found)  # 1, 1.0 and True are equal, but not the same
        key.append(arg)
        return arg

    def _constant(self, tensor: Tensor) -> tuple[fx.Node, Kind]:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.device != _CPU:
            raise Unfit(f"a tensor of kind {type(tensor).__name__} on {tensor.device}")
        name = self._constant_names.setdefault(id(tensor), f"_tensor_constant{len(self.constants)}")
        self.constants[name] = tensor  # held, so that its id stays its own
        shape, strides, _, dtype = geometry(tensor)
        kind = self._kind(torch.empty_strided(shape, strides, dtype=dtype))
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = kind.example
        self._stamp(node)
        return node, kind

    def _kind(self, tensor: Tensor) -> Kind:
        if tensor.layout is not torch.strided or tensor.device != _CPU or tensor.is_conj() or tensor.is_neg():
            raise Unfit(f"a tensor of layout {tensor.layout} on {tensor.device}")
        key = geometry(tensor)
        if key not in self._kinds:
            self._kinds[key] = Kind(tensor)
        return self._kinds[key]

    def _worked_out(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Kind | tuple[Kind | None, ...]:
        """The types of the results, asked of the fake mode below."""
        result = func(*_examples(args), **{name: _example(arg) for name, arg in kwargs.items()})
        if isinstance(result, Tensor):
            return self._kind(result)
        if isinstance(result, list | tuple) and all(r is None or isinstance(r, Tensor) for r in result):
            return tuple(None if r is None else self._kind(r) for r in result)
        raise Unfit(f"{func} returns a {type(result).__name__}")


def _joined(made: object, base: object, func: OpOverload) -> object:
    """The results of a view, known as other names of its first operand.

    Raises:
        Unfit: the operand was written.  Functionalization makes such a view anew at each use; only detach vanishes later.
    """
    aliases = base.aliases if isinstance(base, Traced) else Aliases()
    if aliases.written and func is not aten.detach.default:
        raise Unfit(f"{func} of a tensor that was written in place")
    for result in _leaves([made]):
        if isinstance(result, Traced):
            result.aliases = aliases
            aliases.count += 1
    return made


def _functional_twin(func: OpOverload) -> tuple[OpOverload, tuple[int, ...]]:
    """The op that computes what ``func`` writes, and the places of the arguments that ``func`` writes into.

    Raises:
        Unfit: it writes into keywords, or its name does not say.
    """
    if func is aten._native_batch_norm_legit.default:
        return aten._native_batch_norm_legit_functional.default, (3, 4)
    places = tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    name = func.overloadpacket.__name__
    packet = getattr(getattr(torch.ops, func.namespace), name.removesuffix("_"), None)
    if places == (0,) and name.endswith("_") and isinstance(packet, OpOverloadPacket):
        wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
        for twin in (getattr(packet, overload) for overload in packet.overloads()):  # type: ignore[no-untyped-call]
            if [(a.name, str(a.type)) for a in twin._schema.arguments] == wanted and not twin._schema.is_mutable:
                return twin, places
    raise Unfit(f"{func} has no functional twin of its name")


def _example(arg: object) -> object:
    if isinstance(arg, Traced):
        return arg.kind.example
    return _examples(arg) if isinstance(arg, list | tuple) else arg


def _examples(args: Sequence[object]) -> list[object]:
    return [_example(arg) for arg in args]


def _leaves(args: Sequence[object]) -> Iterator[object]:
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from _leaves(arg)
        else:
            yield arg


def _returns_list(func: OpOverload) -> bool:
    returns = func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
