"""From the traced fx graph to the LogicalGraph: functional, device-free, named, with accumulations and the optimizer.

fx node                       here
placeholder                   GraphInput (parameter:FQN, buffer:FQN, batch:input.N)
get_attr                      GraphInput constant:DIGEST
detach, alias, no-op view     nothing: the operand's name stands for it
getitem                       an entry of the producer's outputs
loss, gradients               regista.accumulate, then an update (regista.sgd, regista.adamw, ...) per parameter (update.py)
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.frontend.optim.loss_scale import SCALE
from planner.frontend.random.kernels import DRAWS, RANDOM_STATE
from planner.frontend.to_graph.finish import Body, finished
from planner.frontend.to_graph.known_masks import KnownMasks
from planner.frontend.to_graph.rewrites import dropped, unfolded, with_element_checks, with_narrow_indices, with_shared_heads
from planner.frontend.to_graph.simplify import (
    VANISHING,
    is_no_op,
    only_part,
    refusal,
    same_earlier_view,
    target_of,
    undone_transpose,
    where,
)
from planner.frontend.to_graph.sparse_tables import with_row_gradients
from planner.frontend.to_graph.update import Update
from planner.frontend.to_graph.working_copies import with_gradients_in, with_working_copies
from planner.frontend.tracing.stamp import STAMP, Stamp
from planner.frontend.tracing.trace import Capture, Tracer
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.graph import Arg, Dt, GraphInput, InputKind, LogicalGraph, Mode, Op, Ref
from planner.ir.tensor import DType, TensorType

__all__ = ["Translated", "translate"]

_DROPPED_KWARGS = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})

_Value = str | tuple[str | None, ...]  # a value id, or one per output of an op with several


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """The graph and the values of its CONSTANT inputs, by name.  tracer, refusal, has_loss: as in Capture."""

    graph: LogicalGraph
    constants: dict[str, Tensor]
    tracer: Tracer
    refusal: str
    has_loss: bool


def translate(captured: Capture, update: Update) -> Translated:
    """Turn the traced micro-batch and the optimizer into a LogicalGraph.

    Raises:
        InvalidProgram: forward changes a parameter or an input, or a value has a dtype outside the IR.
        Unsupported: a random op, strides, or a write into a tensor outside the module.
    """
    return _Translation(captured).run(update)


def _origin(node: object) -> object:
    """The node that computes this value: ops that return their operand unchanged are passed over."""
    while isinstance(node, fx.Node) and node.target in VANISHING:
        node = node.args[0]
    return node


def _type_of(tensor: Tensor) -> TensorType:
    return _type(tensor.shape, tensor.dtype)


@lru_cache(maxsize=4096)
def _type(shape: Sequence[int], dtype: torch.dtype) -> TensorType:
    """A model has few types and many tensors: equal types are one object."""
    return TensorType(tuple(int(extent) for extent in shape), DType.parse(str(dtype)))


class _Translation:
    """A builder: walks the nodes once, in trace order."""

    def __init__(self, captured: Capture) -> None:
        self._captured = captured
        self._types: dict[str, TensorType] = {}
        self._inputs: list[GraphInput] = []
        self._constants: dict[str, Tensor] = {}
        self._ops: list[Op] = []
        self._values: dict[fx.Node, _Value] = {}
        self._refused: dict[str, str] = {}  # op id -> why it cannot be carried out; raised only if the op is needed
        self._order = {node: index for index, node in enumerate(captured.graph.nodes)}
        self._masks = KnownMasks(captured)

    def run(self, update: Update) -> Translated:
        nodes, captured = list(self._order), self._captured
        self._declare([node for node in nodes if node.op == "placeholder"])
        names: dict[str, str] = {}
        for node in nodes:
            if node.op == "get_attr":
                held = str(node.target)
                if held not in names:  # read once, however many nodes name it
                    names[held] = self._constant(node)
                self._values[node] = names[held]
            elif node.op == "call_function":
                self._values[node] = self._call(node)
        (output,) = nodes[-1].args
        assert isinstance(output, Sequence)
        num_results, num_buffers = 1 + len(captured.trained) + len(captured.outputs), len(captured.buffers)
        written = self._changed(output[num_results + num_buffers :])
        loss, *results = [self._name(node) for node in output[:num_results]]
        new_buffers = [self._name(node) for node in output[num_results : num_results + num_buffers]]
        buffers = zip(captured.buffers, new_buffers, strict=True)
        body = Body(
            inputs=tuple(self._inputs),
            types=self._types,
            ops=tuple(self._ops),
            loss=loss,
            gradients=dict(zip(captured.trained, results, strict=False)),
            outputs=dict(zip(captured.outputs, results[len(captured.trained) :], strict=True)),
            updates={f"buffer:{name}": value for name, value in buffers if value != f"buffer:{name}"} | written,
            places={node.name: place for node, place in self._order.items()},
            forward_of=self._forward_of(),
            refused=self._refused,
            micro_batches=captured.micro_batches,
        )
        for rewrite in (unfolded, dropped, with_shared_heads, with_narrow_indices, with_element_checks):
            body = rewrite(body)
        if (working := captured.precision.working) is not None:
            trained = update.group_of if captured.mode is Mode.TRAIN else None
            body = with_working_copies(body, DType.parse(str(working)), trained)
        if captured.mode is Mode.TRAIN:
            body = with_row_gradients(body, update)
        if update.grad_dtype is not None:
            body = with_gradients_in(body, update.grad_dtype)
        graph = finished(body, update if captured.mode is Mode.TRAIN else None)
        read = {i.name for i in graph.inputs if i.kind is InputKind.CONSTANT}
        return Translated(
            graph=graph,
            constants={name: value for name, value in self._constants.items() if name in read},
            tracer=captured.tracer,
            refusal=captured.refusal,
            has_loss=captured.has_loss,
        )

    def _forward_of(self) -> dict[str, int]:
        """Backward op -> place in the trace of the forward node it differentiates (of the op behind it, when that is an alias)."""
        place_of = {value: self._order[node] for node, value in self._values.items() if node.name == value}
        places: dict[str, int] = {}
        for node in self._order:
            stamp = node.meta.get(STAMP)
            if isinstance(stamp, Stamp) and stamp.forward is not None:
                value = self._values[stamp.forward]
                places[node.name] = (
                    place_of.get(value, self._order[stamp.forward]) if isinstance(value, str) else self._order[stamp.forward]
                )
        return places

    def _declare(self, placeholders: Sequence[fx.Node]) -> None:
        captured = self._captured
        written = self._written(placeholders)
        kinds = [(InputKind.BUFFER if name in written else InputKind.PARAMETER, name) for name in captured.parameters]
        heads: list[tuple[InputKind, str, int | None, str | None]] = [(*head, None, None) for head in kinds]
        heads += [(InputKind.BUFFER, name, None, None) for name in captured.buffers]
        heads += [(InputKind.BATCH, f"input.{i}", dim, None) for i, dim in enumerate(captured.batch_dims)]
        heads += [(InputKind.BATCH, f"input.{i}.whole", None, f"input.{i}") for i in captured.whole]
        heads += [(InputKind.RANDOM, name, None, None) for name in RANDOM_STATE]
        heads += [(InputKind.LOSS_SCALE, SCALE, None, None)] * captured.precision.scales_loss
        for node, (kind, name, batch_dim, whole_of) in zip(placeholders, heads, strict=True):
            self._values[node] = self._input(kind, name, _type_of(node.meta["val"]), batch_dim, whole_of)

    def _written(self, placeholders: Sequence[fx.Node]) -> set[str]:
        """Parameters that forward writes and nobody trains (a teacher that follows the trained weights): they are state, as buffers are."""
        captured = self._captured
        (output,) = next(reversed(self._order)).args
        assert isinstance(output, Sequence)
        first = 1 + len(captured.trained) + len(captured.outputs) + len(captured.buffers)
        after = zip(captured.parameters, placeholders, output[first:], strict=False)
        return {name for name, before, node in after if _origin(node) is not before} - set(captured.trained)

    def _input(self, kind: InputKind, name: str, type_: TensorType, batch_dim: int | None = None, whole_of: str | None = None) -> str:
        value = name if kind in (InputKind.RANDOM, InputKind.LOSS_SCALE) else f"{kind.value}:{name}"
        self._inputs.append(GraphInput(value=value, kind=kind, name=name, batch_dim=batch_dim, whole_of=whole_of))
        self._types[value] = type_
        return value

    def _constant(self, node: fx.Node) -> str:
        tensor = self._captured.constants[str(node.target)]
        if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
            raise InvalidProgram(f"{where(node)} uses a tensor without values that is no parameter or buffer; register it as a buffer")
        if tensor.requires_grad:
            raise InvalidProgram(
                f"{where(node)} uses a trainable tensor of shape {tuple(tensor.shape)} that is no parameter of the module; "
                "register it in the module, or detach() it"
            )
        return self._lifted(tensor.detach().cpu().contiguous().clone())

    def _lifted(self, content: Tensor) -> str:
        type_ = _type_of(content)
        # named by content: another trace gives the same name to the same tensor, and to no other
        data = content.reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(str(type_).encode() + data).hexdigest()[:12]
        if digest not in self._constants:
            self._constants[digest] = content
            self._input(InputKind.CONSTANT, digest, type_)
        return f"{InputKind.CONSTANT.value}:{digest}"

    def _name(self, node: object) -> str:
        value = self._values[node] if isinstance(node, fx.Node) else None
        assert isinstance(value, str), node
        return value

    def _call(self, node: fx.Node) -> _Value:
        if node.target is operator.getitem:
            parent, index = node.args
            assert isinstance(parent, fx.Node) and isinstance(index, int)
            return self._values[parent][index] or ""  # "" : an output that is no tensor; nobody reads it
        if is_no_op(node):
            return self._name(node.args[0])
        if (origin := undone_transpose(node) or same_earlier_view(node) or only_part(node)) is not None:
            return self._name(origin)
        target = target_of(node)
        if (reason := refusal(node)) is not None:
            self._refused[node.name] = reason
        return self._emit(node, target)

    def _changed(self, results: Sequence[object]) -> dict[str, str]:
        """State of parameters that nobody trains -> what forward makes of it.

        Raises:
            InvalidProgram: forward wrote into a trained parameter or into a batch input.
        """
        captured, changed = self._captured, dict[str, str]()
        names = {*captured.parameters, *(f"input.{i}" for i in range(len(captured.batch_dims)))}
        given_ones = [i for i in self._inputs if i.name in names and i.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.BATCH)]
        for given, node in zip(given_ones, results, strict=True):
            if given.kind is InputKind.BUFFER:
                changed[given.value] = self._name(node)
            elif self._name(node) != given.value:
                assert isinstance(node, fx.Node)
                raise InvalidProgram(
                    f"{where(node)} changes {given.kind.value} {given.name} in place during forward "
                    f"({node.target}); compute a new tensor instead"
                )
        return changed

    def _emit(self, node: fx.Node, target: OpOverload) -> _Value:
        stamp = node.meta[STAMP]
        assert isinstance(stamp, Stamp)
        value = node.meta.get("val")
        several = isinstance(value, list | tuple)
        tensors = list(value) if isinstance(value, list | tuple) else [value]
        outputs: list[str | None] = []
        for index, tensor in enumerate(tensors):
            name = f"{node.name}:{index}" if several else node.name
            outputs.append(name if isinstance(tensor, Tensor) else None)
            if isinstance(tensor, Tensor):
                if tensor.layout is not torch.strided:
                    raise Unsupported(
                        f"{where(node)} makes a tensor of layout {tensor.layout} ({node.target}); only dense tensors are planned"
                    )
                try:
                    self._types[name] = _type_of(tensor)
                except InvalidProgram as error:
                    raise InvalidProgram(f"{where(node)} calls {node.target}: {error}") from error
        given, text = self._masks.arguments(node), str(target)
        args, draw = (given[:-1], given[-1]) if text in DRAWS else (given, None)
        assert draw is None or isinstance(draw, int)
        self._ops.append(
            Op(
                id=node.name,
                target=text.removesuffix(".default") if target.namespace == "regista" else text,
                args=tuple([self._arg(node, a) for a in args]),
                kwargs=tuple([(key, self._arg(node, a)) for key, a in node.kwargs.items() if key not in _DROPPED_KWARGS]),
                outputs=tuple(outputs),
                role=stamp.role,
                module=stamp.module,
                draw=draw,
                again=stamp.again,
            )
        )
        return tuple(outputs) if several else outputs[0] or ""

    def _arg(self, node: fx.Node, arg: object) -> Arg:
        match arg:
            case fx.Node():
                return Ref(self._name(arg))
            case None | bool() | int() | float() | str():
                return arg
            case list() | tuple():
                return tuple(self._arg(node, item) for item in arg)
            case complex():
                made = node.meta.get("val")
                kind = made.dtype if isinstance(made, Tensor) and made.dtype.is_complex else torch.complex64
                return Ref(self._lifted(torch.tensor(arg, dtype=kind)))
            case torch.dtype():
                return Dt(DType.parse(str(arg)))
            case torch.device() | torch.layout() | torch.memory_format():
                return None
        raise Unsupported(
            f"{where(node)} calls {node.target} with a {type(arg).__name__} ({arg}); only real numbers and tensors are supported"
        )
