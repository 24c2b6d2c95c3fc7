"""A fragment as one fx graph of torch's ops, for inductor.

    reads (x, w)      def forward(x, w, s0):
    v2 = mm(x, w)         mm = aten.mm(x, w)
    v3 = relu(v2)  -->    relu = aten.relu(mm)
    writes (v3)           s0.copy_(relu)            a place whose memory is given; inductor computes it there where it can
                          return ()

The ops are those of the Plan, one by one: what backend.ops.fused puts together by hand inductor puts together itself.  What has no meaning in torch's
own ops is called as a custom op (``regista::attention``), which inductor leaves as it is: attention, recurrences, look-ups of a part of a table,
and draws (backend.ops.inductor.drawn).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from backend.layout.boxing import BOXING, parse_boxing
from backend.layout.sharding import torch_dtype
from backend.ops.cpu import QUICKER
from backend.ops.cpu.products import is_large_product
from backend.ops.fragment import draws
from backend.ops.inductor.drawn import DRAWN, whole_product
from backend.ops.kernels import arguments_at, kernel, overload
from backend.ops.writable import WritableBlocks
from planner.ir.errors import InvalidPlan
from planner.ir.graph import Arg, Dt, Effect, Op, Ref
from planner.ir.plan import Fragment, Placement, Plan, Task
from planner.ir.tensor import TensorType
from planner.opset import is_creation

__all__ = ["FragmentTypes", "returned_places", "trace", "types_of"]

_LOOKUPS: Mapping[str, int] = {"regista.embedding": 2, "regista.embedding_backward": 2, "regista.pick": 3, "regista.place": 3}
"""Target -> which argument lists the slots; the extent of the whole table comes next (planner.frontend.tracing.lookup)."""
_STEPS: Mapping[str, int] = {"regista.embedding_backward": 5, "regista.place": 5}
"""Target -> which argument is the step between listed slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTypes:
    """What a fragment's function is given on one rank.   reads, slots: shape and dtype of each.   device: torch's name of it.

    micro_batch: whether the number of the micro-batch comes last.
    """

    reads: tuple[TensorType, ...]
    slots: tuple[TensorType, ...]
    device: str
    micro_batch: bool

    def made(self) -> list[Tensor]:
        """Tensors of these types, row-major, in the order of the function's parameters; fake ones inside a FakeTensorMode."""
        tensors = [torch.empty(t.shape, dtype=torch_dtype(t.dtype), device=self.device) for t in (*self.reads, *self.slots)]
        return tensors + [torch.empty((), dtype=torch.int64)] * self.micro_batch


def returned_places(task: Task, writable: WritableBlocks) -> tuple[int, ...]:
    """Places in task.writes that the traced function returns: those without memory of their own, and state, which is read until the end."""
    return tuple(place for place in range(len(task.writes)) if place not in writable.slots or place in writable.state)


def types_of(plan: Plan, task: Task, rank: int, writable: WritableBlocks, device: str) -> FragmentTypes:
    """Of a fragment on one of its ranks."""

    def placed(regst: str, index: int) -> TensorType:
        held = plan.regst[regst]
        return held.tensors[index].local_type(plan.placement[held.placement], rank)

    returned = returned_places(task, writable)
    slots = [task.writes[place] for place in writable.slots if place not in returned]
    return FragmentTypes(
        reads=tuple(placed(access.regst, access.index) for access in task.reads),
        slots=tuple(placed(access.regst, access.index) for access in slots),
        device=device or "cpu",
        micro_batch=draws(task),
    )


def trace(task: Task, placement: Placement, rank: int, writable: WritableBlocks, types: FragmentTypes) -> tuple[GraphModule, list[Tensor]]:
    """The fragment's graph and its operands, fake ones: what it reads, the slots, and the micro-batch's number where it draws.

    It writes to the slots and returns the values at ``returned_places``, row-major.

    Raises:
        InvalidPlan: the task has no fragment.   UnknownOp: a target without kernel.   Whatever torch says of an op that it cannot trace.
    """
    if not isinstance(task.body, Fragment):
        raise InvalidPlan(f"task {task.id} of kind {task.kind.value} has no fragment to trace")
    ops, coordinate = task.body.ops, placement.coordinate(rank)
    returned = returned_places(task, writable)
    slots = [place for place in writable.slots if place not in returned]

    def fragment(*operands: Tensor) -> tuple[Tensor, ...]:
        given = list(operands)
        micro_batch = given.pop() if types.micro_batch else None
        values = {access.name: value for access, value in zip(task.reads, given, strict=False)}
        for op in ops:
            results = _performed(op, values, placement.mesh, coordinate, types.device, micro_batch)
            values |= {name: result for name, result in zip(op.outputs, results, strict=False) if name is not None}
        for place, slot in zip(slots, given[len(task.reads) :], strict=True):
            slot.copy_(values[task.writes[place].name])
        return tuple(values[task.writes[place].name].contiguous() for place in returned)

    with torch.no_grad(), FakeTensorMode():
        operands = types.made()
        return make_fx(fragment)(*operands), operands


def _performed(
    op: Op, values: Mapping[str, Tensor], mesh: Sequence[int], coordinate: Sequence[int], device: str, micro_batch: Tensor | None
) -> Sequence[Tensor]:
    if op.target == BOXING:
        read, step = parse_boxing(op, mesh, coordinate)
        return (step(values[read]),)
    arguments = [_argument(arg, values) for arg in arguments_at(op, mesh, coordinate)]
    named = {key: _argument(arg, values) for key, arg in op.kwargs}
    if op.effect is Effect.RANDOM:
        assert micro_batch is not None
        arguments.append(micro_batch)
    if not op.inputs and is_creation(op):
        named["device"] = device
    result = _traceable(op, arguments)(*arguments, **named)
    return (result,) if isinstance(result, Tensor) else result  # type: ignore[return-value]


def _traceable(op: Op, arguments: Sequence[object]) -> Callable[..., object]:
    """What performs an op on fake tensors: torch's kernel, or a custom op that stands for one of ours."""
    if op.effect is Effect.RANDOM:
        return DRAWN[op.target]
    if op.target == "aten.mm.default":
        x, w = arguments
        assert isinstance(x, Tensor) and isinstance(w, Tensor)
        return whole_product if is_large_product(x, w) else torch.ops.aten.mm.default
    if op.target in QUICKER:
        return overload(op.target)
    if op.target.startswith("regista.") and not _is_whole_lookup(op, arguments):
        registered: Callable[..., object] | None = getattr(torch.ops.regista, op.target.removeprefix("regista."), None)
        if registered is not None:
            return registered
    return kernel(op.target)


def _is_whole_lookup(op: Op, arguments: Sequence[object]) -> bool:
    """Whether it is a look-up in a table that is whole, which is one of torch's own ops."""
    if op.target not in _LOOKUPS:
        return False
    place = _LOOKUPS[op.target]
    slots, extent = arguments[place], arguments[place + 1]
    step = arguments[_STEPS[op.target]] if len(arguments) > _STEPS.get(op.target, len(arguments)) else 1
    assert isinstance(slots, Tensor) and isinstance(step, int)
    return slots.shape[0] * step == extent


def _argument(arg: Arg, values: Mapping[str, Tensor]) -> object:
    match arg:
        case Ref(value):
            return values[value]
        case Dt(dtype):
            return torch_dtype(dtype)
        case tuple():
            return [_argument(item, values) for item in arg]
        case _:
            return arg
