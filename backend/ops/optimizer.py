"""The optimizer ops as a runtime performs them: in one pass over memory, in place where the Plan allows it, all parameters in one call.

The reference performer runs ``regista.adamw``, ``regista.adam`` and ``regista.sgd`` as they stand in planner.frontend.optim.updates: functional,
a dozen passes, a new tensor per pass.  A worker owns the blocks of its state, and once all readers have acknowledged a block (SEMANTICS 3.2)
nobody can see it change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from planner.frontend.optim.rows import in_place
from planner.frontend.optim.updates import Rate, number
from planner.ir.graph import Arg, Op, Ref

__all__ = ["AdamNumbers", "adam_in_place", "fuse_adams", "sgd_in_place", "update_call"]

ADAMW, ADAM, ADAMS, SGD = "regista.adamw", "regista.adam", "fused.adams", "regista.sgd"

Updated = Sequence[Tensor]
"""(param, exp_avg, exp_avg_sq, step, with amsgrad max_exp_avg_sq) of the first parameter, then of the second, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamNumbers:
    """What the updates of several parameters have in common.

    lr, beta1: None where they are arguments behind the operands, in this order.
    decoupled: weight decay as in AdamW.   amsgrad: a parameter has a sixth operand, max_exp_avg_sq.
    """

    lr: float | None
    beta1: float | None
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool = True
    amsgrad: bool = False

    @property
    def width(self) -> int:
        """Operands of one parameter: param, grad, exp_avg, exp_avg_sq, step, with amsgrad max_exp_avg_sq."""
        return 6 if self.amsgrad else 5


def _operands(op: Op) -> tuple[Arg, ...]:
    return tuple(arg for arg in op.args[: 5 if op.target == ADAMW else 6] if arg is not None)


def _constants(op: Op) -> tuple[Arg, ...]:
    """lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad."""
    if op.target == ADAMW:
        return (*op.args[5:], True, False)
    return (*op.args[6:], op.args[5] is not None)


_CONSTANTS = 7


def fuse_adams(ops: Sequence[Op], given: frozenset[str]) -> tuple[Op, ...]:
    """The fragment's ops with one ``fused.adams`` for the ``regista.adamw`` and ``regista.adam`` that have the same constants.

    The one op stands where the last of them stood, and what reads its results (casts to working copies) directly behind it.  It covers only
    updates whose operands the fragment reads (a gradient computed in the fragment would live longer than the Plan counts), and none whose
    results another of them reads; every other update becomes an op of its own.

    Args:
        given: values that the fragment reads.
    """
    groups: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        if op.target in (ADAMW, ADAM):
            groups.setdefault((*_constants(op), "" if given.issuperset(op.inputs) else op.id), []).append(op)
    wholes = {members[-1].id: _merged(members) for members in groups.values()}
    early = {member.id for members in groups.values() for member in members[:-1]}
    fused: list[Op] = []
    waiting: list[Op] = []
    late: set[str] = set()
    """Results of updates that are still to come, and what is computed from them."""

    def put(op: Op) -> None:
        is_ready = late.isdisjoint(op.inputs)
        (fused if is_ready else waiting).append(op)
        (late.difference_update if is_ready else late.update)(_results(op))

    for op in ops:
        if op.id in early:
            late.update(_results(op))
            continue
        put(wholes.get(op.id, op))
        if op.id in wholes:
            readers, waiting = waiting, []
            for reader in readers:
                put(reader)
    return tuple(fused)


def _results(op: Op) -> tuple[str, ...]:
    return tuple(value for value in op.outputs if value is not None)


def _merged(members: Sequence[Op]) -> Op:
    args = tuple(arg for op in members for arg in _operands(op))
    outputs = tuple(value for op in members for value in op.outputs)
    return replace(members[-1], target=ADAMS, args=(*args, *_constants(members[0])), outputs=outputs)


def update_call(op: Op, overwritable: frozenset[str]) -> tuple[Callable[..., Updated], tuple[Arg, ...]] | None:
    """(kernel, its arguments) for an update; None for other ops.

    Args:
        overwritable: values that the kernel may update in place.
    """
    if op.target == SGD:
        param, buffer = op.args[0], op.args[2]
        may_write = isinstance(param, Ref) and param.value in overwritable
        return sgd_in_place((may_write, buffer is None or (isinstance(buffer, Ref) and buffer.value in overwritable))), op.args
    if op.target == ADAMS:
        values, constants = op.args[:-_CONSTANTS], op.args[-_CONSTANTS:]
        given = tuple(arg for arg in constants if isinstance(arg, Ref))  # lr and beta1 of a schedule
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "amsgrad")
        known = (None if isinstance(arg, Ref) else arg for arg in constants)
        numbers = AdamNumbers(**dict(zip(names, known, strict=True)))  # type: ignore[arg-type]
        own = tuple(isinstance(arg, Ref) and (place % numbers.width == 1 or arg.value in overwritable) for place, arg in enumerate(values))
        return adam_in_place(own, numbers), (*values, *given)
    own = tuple(isinstance(arg, Ref) and arg.value in overwritable for arg in op.args)
    if (by_rows := in_place(op.target, own)) is not None:
        return by_rows, op.args
    return None


def _one_piece(value: Tensor, own: bool) -> Tensor:
    """Memory that may be overwritten, in one piece, as kernels that walk raw memory need it."""
    return value if own and value.is_contiguous() else value.clone(memory_format=torch.contiguous_format)


def adam_in_place(own: Sequence[bool], numbers: AdamNumbers) -> Callable[..., Updated]:
    """A kernel for some Adam or AdamW updates on torch's fused CPU/CUDA kernel (the arithmetic of torch.optim, to rounding).

    Args:
        own: for each argument, whether the kernel may use its memory; gradients may always be used (nothing is written to them), other
            arguments are copied where it is False.

    Returns:
        a function of the operands (AdamNumbers.width) of the first parameter, then of the second, ..., at the end lr and beta1 if they are
        arguments.
    """
    width = numbers.width
    kernel = torch._fused_adamw_ if numbers.decoupled else torch._fused_adam_

    def adam(*values: Tensor) -> Updated:
        beta1 = number(values[-1]) if numbers.beta1 is None else numbers.beta1
        values = values[:-1] if numbers.beta1 is None else values
        rate: Rate = _rate(values[-1]) if numbers.lr is None else numbers.lr
        values = values[:-1] if numbers.lr is None else values
        updated = [_one_piece(value, mine) for value, mine in zip(values, own, strict=True)]
        # The kernel takes tensors of one dtype at a time.
        by_dtype: dict[torch.dtype, list[list[Tensor]]] = {}
        for at in range(0, len(updated), width):
            lists = by_dtype.setdefault(updated[at].dtype, [[] for _ in range(width)])
            for members, value in zip(lists, updated[at : at + width], strict=True):
                members.append(value)
        for params, grads, averages, squares, steps, *largest in by_dtype.values():
            torch._foreach_add_(steps, 1)
            kernel(  # type: ignore[call-overload]  # lr is a number or a tensor: two overloads
                params,
                grads,
                averages,
                squares,
                *(largest or [[]]),
                steps,
                lr=rate,
                beta1=beta1,
                beta2=numbers.beta2,
                weight_decay=numbers.weight_decay,
                eps=numbers.eps,
                amsgrad=numbers.amsgrad,
                maximize=False,
            )
        del updated[1::width]  # the gradients
        return tuple(updated)

    return adam


def _rate(value: Tensor) -> Rate:
    """The learning rate as torch's kernel takes it: on an accelerator as it is, because a number would wait for the device."""
    return number(value) if value.is_cpu else value.float()


def sgd_in_place(own: tuple[bool, bool]) -> Callable[..., Updated]:
    """A kernel for ``regista.sgd``, bit for bit what the op returns.

    Args:
        own: whether (param, momentum_buffer) may be overwritten; what may not is copied first.
    """

    def sgd(param: Tensor, grad: Tensor, buffer: Tensor | None, lr: Rate, momentum: Rate, weight_decay: float, nesterov: bool) -> Updated:
        rate, momentum = number(lr), number(momentum)
        param = param if own[0] else param.clone()
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if buffer is None:
            return (param.add_(grad, alpha=-rate),)
        buffer = (buffer if own[1] else buffer.clone()).mul_(momentum).add_(grad)
        direction = grad.add(buffer, alpha=momentum) if nesterov else buffer
        return param.add_(direction, alpha=-rate), buffer

    return sgd
