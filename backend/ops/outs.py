"""Which kernels can write their result straight into existing memory: the ``.out`` overload of an aten op.

Only overloads with a kernel of their own count.  The others are generated: they compute a new tensor and copy it, and may resize the
memory given; the runtime copies by itself instead.

For a value that has a place in planned workspace there are a few kernels more (``workspace_kernel``).  They rely on the place having the shape,
dtype and strides that the value had when it was computed on the heap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from backend.layout.boxing import BOXING
from backend.ops.cpu import QUICKER
from backend.ops.cpu.products import Library, library, product
from backend.ops.fused import KERNELS
from backend.ops.fused.batch_norm import BATCH_NORM
from backend.ops.fused.batch_norm_gradient import BATCH_NORM_GRADIENT
from backend.ops.fused.log_softmax import LOG_SOFTMAX_GRADIENT
from backend.ops.fused.prelu import PRELU, PRELU_GRADIENT
from backend.ops.fused.products import MM_BIAS
from backend.ops.fused.short_norms import SHORT_BATCH_NORM, SHORT_BATCH_NORM_GRADIENT
from planner.ir.graph import OUTPUT, Op

__all__ = ["COPIES", "NEW_MEMORY", "RESHAPES", "out_kernel", "placed_result", "workspace_kernel"]

COPIES = frozenset({"aten._to_copy.default"})
"""Their result is what ``slot.copy_(input)`` leaves in a contiguous slot, conversion of the dtype included."""


def _copy_into(value: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """A clone, in the slot's own layout, which is row-major as the kernel of a clone has it: not in that of ``value``."""
    return out.copy_(value)


RESHAPES = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"})
"""Views, unless the strides of a part forbid it: then copies, in row-major order."""


def _reshaped_into(value: torch.Tensor, shape: object, *, out: torch.Tensor) -> torch.Tensor:
    out.view(value.shape).copy_(value)
    return out


def _matmul_into(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """The product of batches of matrices by one bmm, as matmul itself does it; its own ``out`` would compute elsewhere and copy."""
    if a.ndim == b.ndim > 2 and a.shape[:-2] == b.shape[:-2] and out.is_contiguous():
        flat = out.view(-1, *out.shape[-2:])
        torch.bmm(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), out=flat)
        return out
    return out.copy_(torch.matmul(a, b))


def _log_softmax_gradient_into(gradient: torch.Tensor, y: torch.Tensor, dim: int, *, out: torch.Tensor) -> torch.Tensor:
    if gradient.dtype == y.dtype and gradient.shape == y.shape:
        torch.ops.aten._log_softmax_backward_data.out(gradient, y, dim, y.dtype, out=out)
        return out
    return out.copy_(KERNELS[LOG_SOFTMAX_GRADIENT](gradient, y, dim))  # type: ignore[arg-type]


def _place_into(
    source: torch.Tensor, dim: int, index: torch.Tensor, slots: torch.Tensor, extent: int, step: int = 1, *, out: torch.Tensor
) -> torch.Tensor:
    if slots.shape[0] * step == extent:
        return out.zero_().scatter_add_(dim, index, source)
    from planner.frontend.tracing.lookup import place  # late: kernels of aten need no frontend

    return out.copy_(place(source, dim, index, slots, extent, step))


def _dropout_into(*arguments: object, out: torch.Tensor) -> torch.Tensor:
    from planner.frontend.random import KERNELS as DRAWN  # late, as above

    return DRAWN[DROPOUT](*arguments, out=out)


def _lstm_into(*arguments: object, out: torch.Tensor) -> object:
    from planner.frontend.recurrent import lstm_into  # late, as above

    return lstm_into(*arguments, out=out)  # type: ignore[arg-type]


DROPOUT = "regista.dropout"
LSTM = "regista.lstm"

_WORKSPACE_KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "aten.matmul.default": _matmul_into,
    "aten._to_copy.default": lambda value, *, out, **_: out.copy_(value),
    LOG_SOFTMAX_GRADIENT: _log_softmax_gradient_into,
    "regista.place": _place_into,
    DROPOUT: _dropout_into,
    **dict.fromkeys(RESHAPES, _reshaped_into),
}

NEW_MEMORY = frozenset(_WORKSPACE_KERNELS) - RESHAPES | {
    *QUICKER,
    "aten.mm.default",
    MM_BIAS,
    BATCH_NORM,
    BATCH_NORM_GRADIENT,
    SHORT_BATCH_NORM,
    SHORT_BATCH_NORM_GRADIENT,
    PRELU,
    PRELU_GRADIENT,
    OUTPUT,
    LSTM,
    "regista.uniform",
    "regista.bernoulli",
}
"""Kernels whose result never lies in the memory of what they read, although no schema says so."""


def placed_result(op: Op) -> str | None:
    """The result for which a kernel can be given memory: the only one, or the first of those of batch norm and of an LSTM."""
    return op.outputs[0] if len(op.outputs) == 1 or op.target in (BATCH_NORM, SHORT_BATCH_NORM, LSTM) else None


@cache
def workspace_kernel(target: str) -> tuple[Callable[..., object], str] | None:
    """As ``out_kernel``, for a place in workspace; for RESHAPES only where the value was copied."""
    own_kernel = _WORKSPACE_KERNELS.get(target)
    return (own_kernel, "out") if own_kernel is not None else out_kernel(target)


_KEYS = ("CPU", "CUDA") if torch.version.cuda else ("CPU",)
"""A fragment may be performed on any device that this torch was built for."""


@cache
def out_kernel(target: str) -> tuple[Callable[..., object], str] | None:
    """(kernel, name of the argument that takes the memory); None where there is no such kernel."""
    if target in (MM_BIAS, BATCH_NORM, SHORT_BATCH_NORM):
        return KERNELS[target], "out"
    if target in QUICKER:
        return QUICKER[target]
    if target == "aten.mm.default" and library() is not Library.TORCHS:
        return product, "out"
    if target in (DROPOUT, LSTM):
        return (_dropout_into if target == DROPOUT else _lstm_into), "out"
    if target in ("aten.clone.default", OUTPUT):
        return _copy_into, "out"
    if not target.startswith("aten.") or target == BOXING:
        return None
    _, name, overload = target.split(".")
    packet = getattr(torch.ops.aten, name, None)
    function = getattr(packet, overload, None)
    if packet is None or function is None or len(function._schema.returns) != 1 or str(function._schema.returns[0].type) != "Tensor":
        return None
    if any(argument.alias_info is not None for argument in (*function._schema.arguments, *function._schema.returns)):
        return None
    operands = [(argument.name, str(argument.type)) for argument in function._schema.arguments]
    for name in packet.overloads():
        into = getattr(packet, name)
        places = [argument.name for argument in into._schema.arguments if argument.is_out]
        rest = [(argument.name, str(argument.type)) for argument in into._schema.arguments if not argument.is_out]
        if len(places) == 1 and rest == operands and all(torch._C._dispatch_has_kernel_for_dispatch_key(into.name(), key) for key in _KEYS):
            return into, places[0]
    return None
