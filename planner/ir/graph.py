"""The logical program: one training step in static single assignment, as if on one device.

Time shapes.  Ops of role FORWARD, BACKWARD and ACCUMULATE act once per micro-batch (the graph is traced at micro-batch size), ops
of role UPDATE once per step.  The border between the two is the op ``regista.accumulate``: m values in, their mean out.
That, and nothing else, is what a pipelined or data-parallel Plan must equal (HINTS, "The logical program").

    batch ----> FORWARD --> loss --> accumulate --> (mean loss)
                   |
                   v
                BACKWARD --> gradient --> accumulate --> UPDATE --> new parameter, new optimizer state
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeVar

from planner.ir.errors import InvalidProgram
from planner.ir.tensor import DType, TensorType

__all__ = [
    "ACCUMULATE",
    "Arg",
    "Dt",
    "ExpertWork",
    "Fusion",
    "Effect",
    "GraphInput",
    "GraphOutput",
    "InputKind",
    "KernelKind",
    "KernelWork",
    "LogicalGraph",
    "Mode",
    "OMITTED",
    "OUTPUT",
    "Op",
    "Ref",
    "Role",
    "refs_in",
    "step_input_value",
    "substitute",
]

T = TypeVar("T")

ACCUMULATE = "regista.accumulate"
OUTPUT = "regista.output"
"""The target of the op through which a value leaves the step.  It returns its operand, which may be whole or split, but no partial sum."""

OMITTED = {"omitted": True}
"""Metadata of a field that stands in files only where it is not its default (planner.ir.text)."""


class Mode(Enum):
    """The kind of step.  EVAL: the forward pass alone, of the module in eval mode, without gradient and update."""

    TRAIN = "train"
    EVAL = "eval"


class Role(Enum):
    """The part of the step an op belongs to; also the colour of its act in every picture."""

    __hash__ = object.__hash__  # asked for millions of times; the inherited one hashes the name

    FORWARD = "forward"
    BACKWARD = "backward"
    ACCUMULATE = "accumulate"
    UPDATE = "update"

    @property
    def per_micro_batch(self) -> bool:
        return self is not Role.UPDATE


class Effect(Enum):
    """What an op does beside computing its results from its operands."""

    NONE = "none"
    RANDOM = "random"


class InputKind(Enum):
    """RANDOM: the seed, and the number of steps taken, that random ops draw from.   WORKING_COPY: a low-precision copy of a parameter.
    LOSS_SCALE: what the loss is multiplied by before the backward pass, and for how many steps that was good.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer_state"
    BATCH = "batch"
    CONSTANT = "constant"
    STEP_INPUT = "step_input"
    RANDOM = "random"
    WORKING_COPY = "working_copy"
    LOSS_SCALE = "loss_scale"

    @property
    def is_state(self) -> bool:
        """State lives across steps; a batch input is fed for every micro-batch, a step input (a learning rate) once per step."""
        return self not in (InputKind.BATCH, InputKind.STEP_INPUT)


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value inside an op's arguments."""

    value: str


@dataclass(frozen=True, slots=True)
class Dt:
    """A dtype as an argument."""

    dtype: DType


Arg = None | bool | int | float | str | Ref | Dt | tuple["Arg", ...]


def step_input_value(name: str) -> str:
    """The value of the step input of that name."""
    return f"{InputKind.STEP_INPUT.value}:{name}"


def refs_in(arg: Arg) -> Iterator[str]:
    """Value ids used in an argument, left to right, repeated as often as they stand there."""
    if isinstance(arg, Ref):
        yield arg.value
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs_in(item)


def substitute(arg: Arg, names: Mapping[str, str]) -> Arg:
    """The argument with value ids renamed."""
    if isinstance(arg, Ref):
        return Ref(names.get(arg.value, arg.value))
    if isinstance(arg, tuple):
        return tuple(substitute(item, names) for item in arg)
    return arg


@dataclass(frozen=True, kw_only=True)  # no slots: ``inputs`` is worked out once and kept
class Op:
    """One operator.  ``target`` is an aten overload (``aten.mm.default``) or one of ours (``regista.adamw``).

    ``outputs`` has one entry per tensor that the operator returns; None where nobody reads it.
    ``forward_of`` of a backward op is the id of the forward op whose gradient it computes: it decides the stage.
    ``draw`` numbers the random draws of a program (None: the op draws nothing); ops of one number draw the same.
    ``again``: a backward op that computes no gradient, but what a forward op has computed before (torch.utils.checkpoint).
    """

    id: str
    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[str | None, ...]
    role: Role
    module: str = ""
    forward_of: str | None = None
    draw: int | None = field(default=None, metadata=OMITTED)
    again: bool = field(default=False, metadata=OMITTED)

    @property
    def effect(self) -> Effect:
        return Effect.NONE if self.draw is None else Effect.RANDOM

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensor operands in the order they stand in args, then kwargs (with repeats)."""
        values: list[str] = []
        for arg in self.args:
            if isinstance(arg, Ref):
                values.append(arg.value)
            elif isinstance(arg, tuple):
                values.extend(refs_in(arg))
        for _, arg in self.kwargs:
            values.extend(refs_in(arg))
        return tuple(values)

    def renamed(self, names: Mapping[str, str]) -> Op:
        """The op reading other values; its outputs keep their names."""
        if all(names.get(value, value) == value for value in self.inputs):
            return self
        kwargs = tuple([(k, substitute(a, names)) for k, a in self.kwargs])
        return self.with_arguments(tuple([substitute(a, names) for a in self.args]), kwargs)

    def numbered(self, op_id: str, forward_of: str | None) -> Op:
        """The op with another id, of a gradient's the id of the forward op; as quickly as ``with_arguments``."""
        return self._changed(id=op_id, forward_of=forward_of)

    def with_arguments(self, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]) -> Op:
        """The op with other arguments: ``replace``, in a third of its time, since a search does it for every op of a model several times."""
        op = self._changed(args=args, kwargs=kwargs)
        op.__dict__.pop("inputs", None)
        return op

    def _changed(self, **fields: object) -> Op:
        op = object.__new__(Op)
        op.__dict__.update(self.__dict__, **fields)
        return op

    def where(self) -> str:
        """How an error message names this op."""
        return f"op {self.id} ({self.target}, {self.role.value}, module {self.module or '<root>'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """A value that enters the graph.

    ``name``: a parameter's or buffer's FQN; ``FQN:slot`` for optimizer state (``h.0.weight:exp_avg``); for the batch the
    argument's position (``input.0``); for a step input what it is (``lr.0``, the learning rate of parameter group 0; ``momentum.0``, its momentum).
    ``batch_dim`` is the tensor dim that micro-batches slice (None: every micro-batch sees it all).
    ``copy_of`` of a working copy is the value of the parameter (``FQN:bfloat16`` is its name).
    ``whole_of``: the name of the batch input that this one is once more, of the whole batch in every micro-batch.
    """

    value: str
    kind: InputKind
    name: str
    batch_dim: int | None = None
    copy_of: str | None = field(default=None, metadata=OMITTED)
    whole_of: str | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOutput:
    """What leaves the step of every micro-batch beside the loss.

    ``name``: where it stands in what the module returns (``logits``, ``output.1``).   ``value``: what an op OUTPUT makes.
    ``batch_dim``: along which the values of the micro-batches are put together; None: there is one micro-batch.
    """

    name: str
    value: str
    batch_dim: int | None = None


@dataclass(frozen=True, kw_only=True)  # no slots: the inputs by value are kept
class LogicalGraph:
    """Ops in topological (trace) order.

    values: id -> type of every value, inputs included (batch inputs at micro-batch size).
    loss: the per-micro-batch scalar;  mean_loss: its accumulated value (one per step).
    gradients: parameter name -> accumulated gradient value.
    updates: value of a state input -> value that replaces it (parameters, optimizer state, buffers).
    outputs: what leaves a forward-only step beside the loss.
    """

    values: Mapping[str, TensorType]
    inputs: tuple[GraphInput, ...]
    ops: tuple[Op, ...]
    loss: str
    mean_loss: str
    gradients: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[GraphOutput, ...] = field(default=(), metadata=OMITTED)

    @property
    def output_values(self) -> frozenset[str]:
        """The values of ``outputs``."""
        return frozenset(output.value for output in self.outputs)

    def kept(self, name: str, work: Callable[[], T]) -> T:
        """What ``work`` makes of this graph, made once and kept with it under a name, as ``producers`` is."""
        key = f"kept {name}"  # no field has such a name
        if key not in self.__dict__:
            self.__dict__[key] = work()
        found: T = self.__dict__[key]
        return found

    def producers(self) -> Mapping[str, Op]:
        return self._producers

    @cached_property
    def _producers(self) -> Mapping[str, Op]:
        return {out: op for op in self.ops for out in op.outputs if out is not None}

    def input_of(self, value: str) -> GraphInput | None:
        return self._input_by_value.get(value)

    @cached_property
    def _input_by_value(self) -> Mapping[str, GraphInput]:
        return {i.value: i for i in reversed(self.inputs)}

    @cached_property
    def masters(self) -> frozenset[str]:
        """Values of parameters that updates alone read, since forward and backward read their working copies."""
        copied = {i.copy_of for i in self.inputs if i.copy_of is not None}
        passes = (op for op in self.ops if op.role.per_micro_batch) if copied else ()
        return frozenset(copied.difference(value for op in passes for value in op.inputs))

    def consumers(self) -> Mapping[str, Sequence[Op]]:
        """Value id -> ops that read it, each op once."""
        return self._consumers

    @cached_property
    def _consumers(self) -> Mapping[str, Sequence[Op]]:
        readers: dict[str, list[Op]] = {value: [] for value in self.values}
        for op in self.ops:
            for value in dict.fromkeys(op.inputs):
                readers[value].append(op)
        return readers

    def verify(self) -> None:
        """Single assignment, definition before use, and every named value typed.

        Raises:
            InvalidProgram: with the op that breaks the law.
        """
        known = {i.value for i in self.inputs}
        for op in self.ops:
            for value in op.inputs:
                if value not in known:
                    raise InvalidProgram(f"{op.where()} reads {value}, which nothing before it produces")
            for made in op.outputs:
                if made is None:
                    continue
                if made in known:
                    raise InvalidProgram(f"{op.where()} produces {made} a second time; values are assigned once")
                known.add(made)
        named = {self.loss, self.mean_loss, *self.gradients.values(), *self.updates.values(), *self.output_values, *known}
        for value in named:
            if value not in known or value not in self.values:
                raise InvalidProgram(f"the graph names {value}, which is {'not typed' if value in known else 'never produced'}")


class Fusion(Enum):
    """How a model is run.

    EAGER: every op is a kernel.   FUSED: elementwise ops, reductions and normalisations that feed each other are one pass over what comes in
    and goes out; so are all updates.   COMPILED: the same, and a graph of kernels is launched at once.
    """

    EAGER = "eager"
    FUSED = "fused"
    COMPILED = "compiled"


class KernelKind(Enum):
    """PRODUCT: shape (batch, m, n, k).   CONVOLUTION: that of the product which it is, and 1 if a filter of 3 x 3
    moves by one place.   ATTENTION, ATTENTION_BACKWARD: (batch, heads, key-value
    heads, queries, keys, elements of a head, 1 if causal).   PASS: everything else, which reads and writes memory; no shape.
    """

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention_backward"
    PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """``times`` equal kernels of one rank.

    dtype: in which it computes; None: on integers.   flop, size_bytes: of one; bytes are those read and written.
    """

    kind: KernelKind
    dtype: DType | None
    shape: tuple[int, ...]
    flop: int
    size_bytes: int
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWork:
    """What of a task's act belongs to experts of one layer; an exchange has bytes alone, which its tensors say.

    task, layer: its id, and the layer's number.   experts: of the layer.   axes: of the mesh, outer first, that cut experts.
    row_axes: that cut their places, so that each part routes tokens of its own.   rows: places of one expert in such a part.
    flop, dtype, traffic_bytes: of its ops on one rank, all places taken.   kernels: of these, where the cluster's device has a kernel table.
    """

    task: str
    layer: int
    experts: int
    axes: tuple[int, ...]
    row_axes: tuple[int, ...]
    rows: int
    flop: int = 0
    dtype: DType | None = None
    traffic_bytes: int = 0
    kernels: tuple[KernelWork, ...] = ()
