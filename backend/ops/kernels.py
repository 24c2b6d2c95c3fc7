"""Kernels: what an op of the graph runs on one part.

``aten.mm.default`` is ``torch.ops.aten.mm.default``; ``regista.accumulate`` is the identity (adding up m micro-batches is the
runtime's work); ``regista.sgd`` and its like are the functions of ``planner.frontend.optim.updates``; ``regista.embedding`` and its like are
the functions of ``planner.frontend.tracing.lookup``, called without torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from backend.ops.fused import KERNELS as WHOLE
from planner.ir.errors import UnknownOp
from planner.ir.graph import ACCUMULATE, Arg, Dt, Op, Ref
from planner.opset import is_creation
from planner.opset.optimizer import UPDATES

__all__ = ["call", "kernel"]

# A part of a tensor need not have the strides of the whole: a view that was legal on the whole may need a copy on the part.
_RESHAPED = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"})


def _identity(value: object) -> object:
    return value


def _packed(value: Tensor) -> Tensor:
    """clone, always in row-major order, which is why modules clone.  A copy in a transposed layout would be copied again by the next matmul
    (52 copies, 2.3 of 148 ms, per step of a GPT of 4 layers [measured in processor time, 2 cores, 2026-11-21]).
    """
    return value.clone(memory_format=torch.contiguous_format)


@cache
def kernel(target: str) -> Callable[..., object]:
    """The callable behind a target.

    Raises:
        UnknownOp: torch has no such overload, and the target is no op of ours.
    """
    if target == ACCUMULATE:
        return _identity
    if target in _RESHAPED:
        return _overload("aten.reshape.default")
    if target == "aten.clone.default":
        return _packed
    if target in WHOLE:
        return WHOLE[target]
    if target in UPDATES:
        from planner.frontend.optim import updates  # late, so that kernels of aten need no frontend

        return updates.KERNELS[target]
    if target.startswith("aten."):
        return _overload(target)
    from planner.frontend.tracing.lookup import KERNELS  # late, for the same reason

    if target in KERNELS:
        return KERNELS[target]
    raise UnknownOp(f"{target} has no kernel; give it one in backend/ops/kernels.py")


def _overload(target: str) -> Callable[..., object]:
    namespace, name, overload = target.split(".")
    try:
        function: Callable[..., object] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError:
        raise UnknownOp(f"{target} has no kernel: torch {torch.__version__} has no overload of that name") from None
    return function


def call(op: Op, env: Mapping[str, Tensor], device: str = "cpu") -> tuple[Tensor | None, ...]:
    """Run one op.

    Args:
        env: a tensor for every value that the op reads.
        device: where ops without tensor operand (full, arange, ...) create their result.

    Returns:
        One entry per entry of ``op.outputs``; None where the operator itself returns none (a masked gradient).

    Raises:
        UnknownOp: the target has no kernel.
    """
    run = kernel(op.target)
    args = [_argument(a, env) for a in op.args]
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
