"""The optimizer ops as a runtime performs them: in one pass over memory, in place where the Plan allows it, all parameters in one call.

The reference performer runs ``regista.adamw`` and ``regista.sgd`` as they stand in planner.frontend.optim.updates: functional, a dozen passes, a new
tensor per pass.  A worker owns the blocks of its state, and once all readers have acknowledged a block (SEMANTICS 3.2) nobody can see it change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from planner.frontend.optim.updates import Rate, number
from planner.ir.graph import Arg, Op, Ref

__all__ = ["adamw_in_place", "fuse_adamws", "sgd_in_place", "update_call"]

ADAMWS, SGD = "fused.adamws", "regista.sgd"
_WIDTH = 5
"""Operands of one parameter: param, grad, exp_avg, exp_avg_sq, step."""

Updated = tuple[Tensor, ...]
"""(param, exp_avg, exp_avg_sq, step) of the first parameter, then of the second, ..."""


def fuse_adamws(ops: Sequence[Op], given: frozenset[str]) -> tuple[Op, ...]:
    """The fragment's ops with one ``fused.adamws`` for the ``regista.adamw`` that have the same constants.

    The one op stands where the last of them stood.  So it covers only updates whose operands the fragment reads (a gradient computed in the
    fragment would live longer than the Plan counts) and whose results no op of the fragment reads; every other update becomes an op of its own.

    Args:
        given: values that the fragment reads.
    """
    read = {value for op in ops for value in op.inputs}
    groups: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        if op.target == "regista.adamw":
            free = given.issuperset(op.inputs) and not any(value in read for value in op.outputs)
            groups.setdefault((*op.args[_WIDTH:], "" if free else op.id), []).append(op)
    wholes = {members[-1].id: _merged(members) for members in groups.values()}
    merged_away = {op.id for members in groups.values() for op in members[:-1]}
    return tuple(wholes.get(op.id, op) for op in ops if op.id not in merged_away)


def _merged(members: Sequence[Op]) -> Op:
    args = tuple(arg for op in members for arg in op.args[:_WIDTH])
    outputs = tuple(value for op in members for value in op.outputs)
    return replace(members[-1], target=ADAMWS, args=(*args, *members[0].args[_WIDTH:]), outputs=outputs)


def update_call(op: Op, overwritable: frozenset[str]) -> tuple[Callable[..., Updated], tuple[Arg, ...]] | None:
    """(kernel, its arguments) for an update; None for other ops.

    Args:
        overwritable: values that the kernel may update in place.
    """
    if op.target == SGD:
        param, buffer = op.args[0], op.args[2]
        may_write = isinstance(param, Ref) and param.value in overwritable
        return sgd_in_place((may_write, buffer is None or (isinstance(buffer, Ref) and buffer.value in overwritable))), op.args
    if op.target == ADAMWS:
        values, (lr, *others) = op.args[:-_WIDTH], op.args[-_WIDTH:]
        own = tuple(isinstance(arg, Ref) and (place % _WIDTH == 1 or arg.value in overwritable) for place, arg in enumerate(values))
        if isinstance(lr, Ref):
            return adamw_in_place(own, (None, *others)), (*values, lr)  # type: ignore[arg-type]  # numbers
        return adamw_in_place(own, (lr, *others)), values  # type: ignore[arg-type]  # five numbers
    return None


def _one_piece(value: Tensor, own: bool) -> Tensor:
    """Memory that may be overwritten, in one piece, as kernels that walk raw memory need it."""
    return value if own and value.is_contiguous() else value.clone(memory_format=torch.contiguous_format)


def adamw_in_place(own: Sequence[bool], hyper: tuple[float | None, float, float, float, float]) -> Callable[..., Updated]:
    """A kernel for some ``regista.adamw`` on torch's fused CPU/CUDA kernel (the arithmetic of torch.optim.AdamW, to rounding).

    Args:
        own: for each argument, whether the kernel may use its memory; gradients may always be used (nothing is written to them), other
            arguments are copied where it is False.
        hyper: lr, beta1, beta2, eps, weight_decay of all of them; lr None: it is an argument.

    Returns:
        a function of (param, grad, exp_avg, exp_avg_sq, step) of the first, then of the second, ..., at the end lr if it is an argument.
    """
    lr, beta1, beta2, eps, weight_decay = hyper

    def adamw(*values: Tensor) -> Updated:
        rate = number(values[-1] if lr is None else lr)
        values = values[:-1] if lr is None else values
        updated = [_one_piece(value, mine) for value, mine in zip(values, own, strict=True)]
        # The kernel takes tensors of one dtype at a time.
        by_dtype: dict[torch.dtype, list[list[Tensor]]] = {}
        for at in range(0, len(updated), _WIDTH):
            lists = by_dtype.setdefault(updated[at].dtype, [[] for _ in range(_WIDTH)])
            for members, value in zip(lists, updated[at : at + _WIDTH], strict=True):
                members.append(value)
        for params, grads, averages, squares, steps in by_dtype.values():
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                params,
                grads,
                averages,
                squares,
                [],
                steps,
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=weight_decay,
                eps=eps,
                amsgrad=False,
                maximize=False,
            )
        del updated[1::_WIDTH]  # the gradients
        return tuple(updated)

    return adamw


def sgd_in_place(own: tuple[bool, bool]) -> Callable[..., Updated]:
    """A kernel for ``regista.sgd``, bit for bit what the op returns.

    Args:
        own: whether (param, momentum_buffer) may be overwritten; what may not is copied first.
    """

    def sgd(param: Tensor, grad: Tensor, buffer: Tensor | None, lr: Rate, momentum: float, weight_decay: float, nesterov: bool) -> Updated:
        rate = number(lr)
        param = param if own[0] else param.clone()
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if buffer is None:
            return (param.add_(grad, alpha=-rate),)
        buffer = (buffer if own[1] else buffer.clone()).mul_(momentum).add_(grad)
        direction = grad.add(buffer, alpha=momentum) if nesterov else buffer
        return param.add_(direction, alpha=-rate), buffer

    return sgd
