"""Kernels: what an op of the graph runs on one part.

``aten.add.Tensor`` is ``torch.ops.aten.add.Tensor``; ``regista.accumulate`` is the identity (adding up m micro-batches is the
runtime's work) and ``regista.output`` a copy;
``regista.sgd`` and its like are the functions of ``planner.frontend.optim.updates``; ``regista.embedding`` and its like are
the functions of ``planner.frontend.tracing.lookup``, called without torch's dispatcher, and those of random ops of ``planner.frontend.random``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from backend.ops.cpu import QUICKER
from backend.ops.cpu.products import Library, library, product
from backend.ops.fused import KERNELS as WHOLE
from planner.ir.errors import UnknownOp
from planner.ir.graph import ACCUMULATE, OUTPUT, Arg, Dt, Effect, Op, Ref
from planner.opset import has_place, is_creation

__all__ = ["HERE", "Place", "arguments_at", "call", "kernel", "overload", "part_offsets"]

# A part of a tensor need not have the strides of the whole: a view that was legal on the whole may need a copy on the part.
_RESHAPED = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"})


def _identity(value: object) -> object:
    return value


def _packed(value: Tensor) -> Tensor:
    """clone, always in row-major order, which is why modules clone.  A copy in a transposed layout would be copied again by the next matmul
    (52 copies, 2.3 of 148 ms, per step of a GPT of 4 layers [measured in processor time, 2 cores, 2026-11-21]).
    """
    return value.clone(memory_format=torch.contiguous_format)


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """torch's kernel, whose operands must have rows (or columns) that are multiples of 16 bytes apart: those of a part are moved so."""
    return torch.ops.aten._grouped_mm.default(_aligned(a), _aligned(b), offs, bias, out_dtype)  # type: ignore[no-any-return]


def _aligned(matrices: Tensor) -> Tensor:
    unit = 16 // matrices.element_size()
    lines = [s for s, n in zip(matrices.stride(), matrices.shape, strict=True) if s != 1 or n == 1]
    if matrices.data_ptr() % 16 == 0 and 1 in matrices.stride()[-2:] and all(s % unit == 0 for s in lines):
        return matrices
    columns = -(-matrices.shape[-1] // unit) * unit
    return matrices.new_empty([*matrices.shape[:-1], columns])[..., : matrices.shape[-1]].copy_(matrices)


@cache
def kernel(target: str) -> Callable[..., object]:
    """The callable behind a target.

    Raises:
        UnknownOp: torch has no such overload, and the target is no op of ours.
    """
    if target == ACCUMULATE:
        return _identity
    if target in _RESHAPED:
        return overload("aten.reshape.default")
    if target in ("aten.clone.default", OUTPUT):
        return _packed
    if target == "aten.mm.default" and library() is not Library.TORCHS:
        return product
    if target in QUICKER:
        return QUICKER[target][0]
    if target == "aten._grouped_mm.default":
        return _grouped_mm
    if target in WHOLE:
        return WHOLE[target]
    if target.startswith("aten."):
        return overload(target)
    from planner.frontend.attention import KERNELS as ATTENDED  # late, so that kernels of aten need no frontend
    from planner.frontend.optim import clipping, loss_scale, rows, updates
    from planner.frontend.random.kernels import KERNELS as DRAWN
    from planner.frontend.recurrent import KERNELS as RECURRENT
    from planner.frontend.tracing.checks.op import KERNELS as CHECKED
    from planner.frontend.tracing.lookup import KERNELS

    tables: tuple[Mapping[str, Callable[..., object]], ...] = (
        updates.KERNELS,
        rows.KERNELS,
        clipping.KERNELS,
        loss_scale.KERNELS,
        DRAWN,
        RECURRENT,
        ATTENDED,
        CHECKED,
        KERNELS,
    )
    for table in tables:
        if target in table:
            return table[target]
    raise UnknownOp(f"{target} has no kernel; give it one in backend/ops/kernels.py")


def overload(target: str) -> Callable[..., object]:
    """torch's own op of that name.

    Raises:
        UnknownOp: there is none.
    """
    namespace, name, variant = target.split(".")
    try:
        function: Callable[..., object] = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    except AttributeError:
        raise UnknownOp(f"{target} has no kernel: torch {torch.__version__} has no overload of that name") from None
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an op is performed: the mesh, the rank's coordinate on it, and the micro-batch.  Random ops draw by it."""

    mesh: tuple[int, ...] = ()
    coordinate: tuple[int, ...] = ()
    micro_batch: int = 0


HERE = Place()
"""One device, the first micro-batch."""


def part_offsets(whole: Sequence[int], cuts: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int]) -> tuple[int, ...]:
    """Where a part begins in a tensor of shape ``whole`` that each axis of the mesh cuts along one dim (-1: none) into even parts.

    >>> part_offsets((4, 6), (1, 0), (2, 2), (1, 1))
    (2, 3)
    """
    sizes, offsets = list(whole), [0] * len(whole)
    for dim, parts, place in zip(cuts, mesh, coordinate, strict=True):
        if dim >= 0:
            sizes[dim] //= parts
            offsets[dim] += place * sizes[dim]
    return tuple(offsets)


def arguments_at(op: Op, mesh: Sequence[int], coordinate: Sequence[int]) -> tuple[Arg, ...]:
    """The arguments of the op's kernel on a part.

    Of a random op, up to the micro-batch: where the part begins in the place of its cuts, then the draw's number.  Of causal attention: the first row.
    """
    is_random = op.effect is Effect.RANDOM
    if not is_random and not has_place(op):
        return op.args
    *others, whole, cuts = op.args
    assert isinstance(whole, tuple) and isinstance(cuts, tuple)
    offsets = part_offsets(whole, cuts, mesh, coordinate) if cuts else ()  # type: ignore[arg-type]
    return (*others, whole, offsets, op.draw) if is_random else (*others, offsets[2] if offsets else 0)


def call(op: Op, env: Mapping[str, Tensor], device: str = "cpu", place: Place = HERE) -> tuple[Tensor | None, ...]:
    """Run one op.

    Args:
        env: a tensor for every value that the op reads.
        device: where ops without tensor operand (full, arange, ...) create their result.
        place: of random ops.

    Returns:
        One entry per entry of ``op.outputs``; None where the operator itself returns none (a masked gradient).

    Raises:
        UnknownOp: the target has no kernel.
    """
    run = kernel(op.target)
    args = [_argument(a, env) for a in arguments_at(op, place.mesh, place.coordinate)]
    if op.effect is Effect.RANDOM:
        args.append(place.micro_batch)
    kwargs = {k: _argument(a, env) for k, a in op.kwargs}
    if not op.inputs and is_creation(op):
        kwargs.setdefault("device", device)
    result = run(*args, **kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)  # type: ignore[return-value]


def _argument(arg: Arg, env: Mapping[str, Tensor]) -> object:
    if isinstance(arg, Ref):
        return env[arg.value]
    if isinstance(arg, Dt):
        return getattr(torch, arg.dtype.value)
    if isinstance(arg, tuple):
        return [_argument(item, env) for item in arg]
    return arg
