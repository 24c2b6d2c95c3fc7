"""The quick tracer: one dispatch mode under autograd writes the graph, and works every op out once per kind of operand.

    module --> autograd --> Recorder --+--> fx node                                   (every time)
                                       '--> FakeTensorMode: types of the results      (once per op, literals and operand types)

make_fx passes each op through three modes and wraps its results twice; in a model of many equal layers almost all of that work has
been done before.  What the recorder leaves out (tensors of foreign kinds, values asked for while tracing) it refuses with NotRecordable, and
trace.py takes make_fx.  Where it does not refuse, the graph is the same, node for node.

A write in place is its functional twin, and the written tensor stands for the twin's result from then on, its views for views of it (views.py):

    relu_(x)                                      x := relu(x)
    _native_batch_norm_legit(.., mean, var, ..)   y, m, s, mean, var := _native_batch_norm_legit_functional(.., mean, var, ..)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import _should_decompose_because_unsafe_op
from torch._ops import OpOverload
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
    autograd_would_have_decomposed,
)

from planner.frontend.tracing.checks.known import CONSTANT, known_equality, known_number, of_known, without_masks
from planner.frontend.tracing.recorder.operators import (
    AT_ONCE,
    SHAPE_TWINS,
    PointwiseTypes,
    as_views,
    changes_nothing,
    example_of,
    examples_of,
    functional_twin,
    leaves,
    returns_list,
)
from planner.frontend.tracing.recorder.traced import NotRecordable, TensorMeta, Traced, geometry
from planner.frontend.tracing.recorder.writes import renew, replace, take_shape

__all__ = ["Recorder"]

aten = torch.ops.aten

_CPU = torch.device("cpu")


class _Handling(Enum):
    """What becomes of an op: a decomposition (ours or torch's), a node, a node whose result is a view, a write, a known value, or nothing.

    SHAPE: the operand becomes a view of itself (squeeze_).

    CHECK: the op returns nothing; it looks at values and raises, which no graph can do.  What it would find, a matrix without inverse, is
    seen in the loss: it is no number then.   NOTHING: the op leaves its operand as it is.
    """

    TABLE = 1
    COMPOSITE = 2
    NODE = 3
    VIEW = 4
    WRITE = 5
    CHECK = 6
    VALUE = 7
    SIZED_BY_VALUES = 8
    NOTHING = 9
    SHAPE = 10


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
        self._metas: dict[object, TensorMeta] = {}
        self._results: dict[tuple[object, ...], TensorMeta | tuple[TensorMeta | None, ...]] = {}
        self._handlings: dict[tuple[OpOverload, bool], _Handling] = {}
        self._names: dict[object, str] = {}
        self._constant_names: dict[int, str] = {}
        self._row_majors: dict[tuple[Sequence[int], torch.dtype], TensorMeta] = {}
        self._pointwise = PointwiseTypes()
        self._again: dict[fx.Node, fx.Node] = {}  # node of an earlier graph -> of this one
        self._decomposing = False

    def placeholder(self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> Traced:
        """An input of the graph; called while a fake mode is active."""
        meta = self._row_major(shape, dtype)
        node = self.graph.placeholder("arg")
        node.meta["val"] = meta.example
        made = Traced.make(meta, node)
        made.requires_grad_(requires_grad)
        return made

    def output(self, results: Sequence[object]) -> None:
        """Closes the graph.

        Raises:
            NotRecordable: a result is not traced.
        """
        if not all(type(result) is Traced for result in results):
            raise NotRecordable("a result that was not computed in the step")
        self.graph.output([result.node for result in results if isinstance(result, Traced)])

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        handling = self._handlings.get((func, self._decomposing))
        if handling is None:
            handling = self._handling_of(func, args, kwargs)
            if handling is _Handling.NOTHING:  # of these operands
                return args[0]
            self._handlings[func, self._decomposing] = handling
        if handling is _Handling.NODE:
            return self._record(func, args, kwargs)
        if handling is _Handling.CHECK:
            return None
        if handling is _Handling.VALUE:
            return self._value_of(func, args)
        if handling is _Handling.SIZED_BY_VALUES:
            return self._of_constants(func, args, kwargs)
        if handling is _Handling.VIEW:
            if not isinstance(args[0], Tensor):
                raise NotRecordable(f"{func} of a number")
            if func is aten.as_strided.default and isinstance(args[0], Traced) and args[0].aliases.moved:
                raise NotRecordable("strides are asked for of a tensor that has others since it was written")
            return as_views(self._record(func, args, kwargs), func, args, kwargs)
        if handling is _Handling.SHAPE:
            twin = SHAPE_TWINS[func]
            return take_shape(args[0], as_views(self._record(twin, args, kwargs), twin, args, kwargs), func, args[1:], kwargs)
        if handling is _Handling.WRITE:
            return self._write(func, args, kwargs)
        if handling is _Handling.TABLE:
            self._renew_all(args)  # before the table is asked, as functionalization does
        with self:
            if handling is _Handling.COMPOSITE:
                return func.decompose(*args, **kwargs)
            before, self._decomposing = self._decomposing, True
            try:
                made = self._table[func](*args, **kwargs)
            finally:
                self._decomposing = before
        if made is not NotImplemented:
            return made
        view = any(r.alias_info for r in func._schema.returns)
        return as_views(self._record(func, args, kwargs), func, args, kwargs) if view else self._record(func, args, kwargs)

    def _handling_of(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> _Handling:
        """As make_fx: functionalization opens composite ops before the table is asked, and does not look into decompositions."""
        if not isinstance(func, OpOverload) or func.namespace == "prim":
            raise NotRecordable(f"{func} is no operator")
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            return _Handling.VALUE
        if func is aten.as_strided_.default and changes_nothing(args):
            return _Handling.NOTHING
        if func in SHAPE_TWINS:
            return _Handling.SHAPE
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.inplace_view in func.tags:
            raise NotRecordable(f"{func} asks for a value, or changes a type")
        composite = func._can_decompose() and (
            any(a.alias_info for a in func._schema.arguments)
            or _should_decompose_because_unsafe_op(func)
            or autograd_would_have_decomposed(func, [*leaves(args), *leaves(tuple(kwargs.values()))])
        )
        if func in self._table and (self._decomposing or not composite):
            return _Handling.TABLE
        if composite:
            return _Handling.COMPOSITE
        if func._schema.is_mutable:
            return _Handling.WRITE
        if torch.Tag.dynamic_output_shape in func.tags:
            return _Handling.SIZED_BY_VALUES
        if not func._schema.returns:
            return _Handling.CHECK
        if not any(r.alias_info for r in func._schema.returns) or func is aten.lift_fresh.default:
            return _Handling.NODE
        if not func._schema.arguments[0].alias_info:
            raise NotRecordable(f"{func} is a view of another operand than its first")
        return _Handling.VIEW

    def _value_of(self, func: OpOverload, args: Sequence[Any]) -> Any:
        """The Python value of ``item()``, ``int()`` or ``torch.equal`` on traced tensors.

        Raises:
            NotRecordable: it depends on more than constants and state that no step changes.
        """
        value = known_equality(*args) if func is aten.equal.default else known_number(args[0], state=True)
        if value is None:
            raise NotRecordable("a value is asked for")
        return value

    def _of_constants(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> object:
        """An op whose result's shape depends on values (nonzero, repeat_interleave): computed of constants; of others a fake tensor refuses it."""
        by_index = func is aten.index.Tensor  # sized by values where masks are among the indices
        results = of_known(func, args, kwargs, state=not by_index)
        if results is None:
            return self._record(func, (args[0], without_masks(args[1])) if by_index else args, kwargs)
        node_and_meta = [self._constant(result) for result in results]
        made = [Traced.make(meta, node) for node, meta in node_and_meta]
        return made[0] if len(func._schema.returns) == 1 else tuple(made)

    def _write(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """The functional twin; what the op writes stands for the twin's last results.

        Raises:
            NotRecordable: the op has no such twin, or writes into a constant, or through a view that has no inverse.
        """
        twin, places = functional_twin(func)
        kwargs = dict(kwargs)
        written = [kwargs.pop(place) if isinstance(place, str) else args[place] for place in places]
        if self._decomposing or not all(isinstance(t, Traced) and t.aliases.node is not None for t in written):
            raise NotRecordable(f"{func} writes into a tensor that is no result of the step")
        made = self._below(twin, *args, **kwargs)
        results = list(made) if isinstance(made, list | tuple) else [made]
        for old, new in zip(written, results[-len(written) :], strict=True):
            assert isinstance(old, Traced)
            if not isinstance(new, Traced) or (new.shape, new.dtype) != (old.shape, old.dtype):
                raise NotRecordable(f"{func} writes another type than its tensor has")
            replace(old, new, twin, self.graph, self._below)
            old.aliases.renew = self._renew
        kept = results[: -len(written)] or written
        return tuple(kept) if len(func._schema.returns) > 1 else kept[0]

    def _below(self, func: OpOverload, *args: object, **kwargs: object) -> object:
        """What functionalization calls itself: no composite op is opened."""
        before, self._decomposing = self._decomposing, True
        try:
            return self.__torch_dispatch__(func, (), args, kwargs)
        finally:
            self._decomposing = before

    def _renew_all(self, args: Sequence[object]) -> None:
        for arg in leaves(args):
            if isinstance(arg, Traced) and arg.generation != arg.aliases.generation:
                self._renew(arg)

    def _renew(self, traced: Traced) -> None:
        if _get_current_dispatch_mode() is self:
            with _pop_mode_temporarily():
                renew(traced, self.graph, self._below)
        else:
            renew(traced, self.graph, self._below)

    def _record(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        called, func = func, AT_ONCE.get(func, func)
        key: list[object] = [func]
        node_args = tuple([self._seen(a, key) for a in args])
        node_kwargs = {}
        for name, arg in kwargs.items():
            key.append(name)
            node_kwargs[name] = self._seen(arg, key)
        if func is aten.lift_fresh.default:
            called = func = aten.lift_fresh_copy.default  # what is lifted is fresh, and stays so in the graph
        try:
            result_metas = self._results.get(tuple(key))
        except TypeError:
            raise NotRecordable(f"{func} has an argument that cannot be compared") from None
        if result_metas is None:
            result_metas = self._results[tuple(key)] = self._worked_out(func, args, kwargs)
        if called not in self._names:
            self._names[called] = self.graph._target_to_str(called.overloadpacket.__name__)
        node = self._node(func, node_args, node_kwargs, self._names[called])
        if isinstance(result_metas, TensorMeta):
            node.meta["val"] = result_metas.example
            return Traced.make(result_metas, node)
        node.meta["val"] = [meta and meta.example for meta in result_metas]
        made: list[Traced | None] = []
        for index, meta in enumerate(result_metas):
            item = self._node(operator.getitem, (node, index), {}, "getitem")
            if meta is None:
                made.append(None)
                continue
            item.meta["val"] = meta.example
            made.append(Traced.make(meta, item))
        return made if returns_list(func) else tuple(made)

    def _node(self, target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], name: str) -> fx.Node:
        node = self.graph.create_node("call_function", target, name=name)
        node.args = args  # type: ignore[assignment]  # afterwards: create_node walks its arguments slowly, for symbols that we never have
        if kwargs:
            node.kwargs = kwargs  # type: ignore[assignment]
        self._stamp(node)
        return node

    def _seen(self, arg: object, key: list[object]) -> object:
        """The argument as a node takes it; what the results' types depend on goes into ``key``."""
        arg_type = type(arg)
        if arg_type is Traced:
            node = arg.node  # type: ignore[attr-defined]
            if node.graph is not self.graph:
                node = self._take_over(arg)  # type: ignore[arg-type]
            key.append(arg.meta)  # type: ignore[attr-defined]
            return node
        if arg_type is list or arg_type is tuple:
            key.append((arg_type, len(arg)))  # type: ignore[arg-type]
            return [self._seen(item, key) for item in arg]  # type: ignore[attr-defined]
        if isinstance(arg, Tensor):
            node, meta = self._constant(arg)
            key.append(meta)
            return node
        key.append(arg_type)  # 1, 1.0 and True are equal, but not the same
        key.append(arg)
        return arg

    def _take_over(self, left: Traced) -> fx.Node:
        """A tensor that an earlier trace left in an attribute: made here again, if it is a constant that was kept to be made but once.

        Raises:
            NotRecordable: it depends on the inputs of the step that left it, which are gone.
        """
        meta = self._meta_of(torch.empty_strided(left.meta.shape, left.meta.strides, dtype=left.meta.dtype))
        left.made, left.meta = self._made_again(left.made), meta
        if not left.chain:
            left.aliases.node, left.aliases.meta = left.made, meta
        return left.made

    def _made_again(self, node: fx.Node) -> fx.Node:
        if node not in self._again:
            self._again[node] = self._constant(node.meta[CONSTANT])[0] if node.op == "get_attr" else self._computed_again(node)
        return self._again[node]

    def _computed_again(self, node: fx.Node) -> fx.Node:
        if node.op == "placeholder" or (isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags):
            raise NotRecordable("a tensor of the step before, kept in an attribute")
        args = fx.map_arg(node.args, self._made_again)
        assert isinstance(args, tuple) and callable(node.target)
        return self._node(node.target, args, dict(fx.map_arg(node.kwargs, self._made_again)), node.name)

    def _constant(self, tensor: Tensor) -> tuple[fx.Node, TensorMeta]:
        lazy = tensor.is_conj() or tensor.is_neg()
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.device != _CPU or lazy:
            raise NotRecordable(f"a tensor of meta {type(tensor).__name__} on {tensor.device}")
        name = self._constant_names.setdefault(id(tensor), f"_tensor_constant{len(self.constants)}")
        self.constants[name] = tensor  # held, so that its id stays its own
        shape, strides, _, dtype = geometry(tensor)
        meta = self._meta_of(torch.empty_strided(shape, strides, dtype=dtype))
        node = self.graph.create_node("get_attr", name)
        node.meta["val"], node.meta[CONSTANT] = meta.example, tensor
        self._stamp(node)
        return node, meta

    def _meta_of(self, tensor: Tensor) -> TensorMeta:
        if tensor.layout is not torch.strided or tensor.device != _CPU:
            raise NotRecordable(f"a tensor of layout {tensor.layout} on {tensor.device}")
        key = geometry(tensor)
        if key not in self._metas:
            self._metas[key] = TensorMeta(tensor)
        return self._metas[key]

    def _worked_out(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> TensorMeta | tuple[TensorMeta | None, ...]:
        """The types of the results.  The fake mode below works them out, unless they follow from what it said of an earlier op."""
        if (learned := self._pointwise.known(func, args, kwargs)) is not None:
            return self._row_major(*learned)
        worked_out = self._asked_below(func, args, kwargs)
        self._pointwise.learn(func, args, kwargs, worked_out)
        return worked_out

    def _row_major(self, shape: Sequence[int], dtype: torch.dtype) -> TensorMeta:
        key = (shape, dtype)
        if key not in self._row_majors:
            self._row_majors[key] = self._meta_of(torch.empty(shape, dtype=dtype))
        return self._row_majors[key]

    def _asked_below(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> TensorMeta | tuple[TensorMeta | None, ...]:
        result = func(*examples_of(args), **{name: example_of(arg) for name, arg in kwargs.items()})
        if isinstance(result, Tensor):
            return self._meta_of(result)
        if isinstance(result, list | tuple) and all(r is None or isinstance(r, Tensor) for r in result):
            return tuple(None if r is None else self._meta_of(r) for r in result)
        raise NotRecordable(f"{func} returns a {type(result).__name__}")
