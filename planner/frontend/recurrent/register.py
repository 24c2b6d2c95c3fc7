"""How a kernel and its backward kernel become two ops of torch: what types their results have, and that one is the derivative of the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.ir.errors import InvalidProgram

__all__ = ["empty_like", "register", "register_step_by_step"]

_Gradients = tuple[Tensor | None, ...]


def register(
    name: str,
    kernels: tuple[Callable[..., object], Callable[..., object]],
    types: tuple[Callable[..., object], Callable[..., object]],
    keep: Callable[..., None],
    differentiated: Callable[..., _Gradients],
) -> None:
    """The ops regista::NAME and regista::NAME_backward.

    Args:
        kernels: forward and backward.   types: the same, but of their results only shape and dtype count.
        keep: (ctx, inputs, output), torch's names: stores what the backward pass reads.   differentiated: (ctx, gradients of the
            output) -> those of the inputs, None where there is none.
    """
    op = torch.library.custom_op(f"regista::{name}", kernels[0], mutates_args=())
    op.register_fake(types[0])
    op.register_autograd(differentiated, setup_context=keep)
    backward = torch.library.custom_op(f"regista::{name}_backward", kernels[1], mutates_args=())
    backward.register_fake(types[1])
    backward.register_autograd(partial(_no_second_gradient, name))


def _no_second_gradient(name: str, ctx: object, *gradients: object) -> NoReturn:
    raise InvalidProgram(
        f"the gradient of a gradient through {name} is asked for, and regista.{name}_backward has none; leave the recurrence out of what is "
        "differentiated twice, or write its steps out (nn.LSTMCell, nn.GRUCell, nn.RNNCell in a loop)"
    )


def register_step_by_step(
    name: str, kernels: tuple[Callable[..., object], Callable[..., object]], type_of: Callable[..., object], *, biases: int
) -> None:
    """The ops of a layer whose backward pass reads all results of the forward pass.

        forward    x, of_input, of_state, biases, hidden, options -> states, ...
        backward   gradient of states, x, of_input, of_state, hidden, results of forward, options, wants_input
                   -> gradients of x, of_input, of_state, biases and hidden

    Args:
        type_of: the type of the forward pass.   biases: how many there may be, [G] each.
    """
    backward = partial(_step_by_step_gradients, f"{name}_backward")
    register(name, kernels, (type_of, partial(_step_by_step_type, biases)), _keep_step_by_step, backward)


def empty_like(x: Tensor, *shaped_as: Tensor | None) -> tuple[Tensor, ...]:
    """Tensors of these shapes and of x's dtype; an empty one for None."""
    return tuple(x.new_empty(0 if other is None else other.shape) for other in shaped_as)


def _step_by_step_type(
    biases: int, gradient: Tensor, x: Tensor, of_input: Tensor, of_state: Tensor, hidden: Tensor, *others: object
) -> tuple[Tensor, ...]:
    wants_input = others[-1]
    of_x, *of_weights, of_hidden = empty_like(x, x if wants_input else None, of_input, of_state, hidden)
    return of_x, *of_weights, *(x.new_empty(of_input.shape[0]) for _ in range(biases)), of_hidden


def _keep_step_by_step(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
    x, of_input, of_state, *biases, hidden = (operand for operand in inputs if not isinstance(operand, bool))
    ctx.save_for_backward(x, of_input, of_state, hidden, *(output if isinstance(output, tuple) else (output,)))
    ctx.options = tuple(operand for operand in inputs if isinstance(operand, bool))  # type: ignore[attr-defined]
    ctx.has_bias = tuple(bias is not None for bias in biases)  # type: ignore[attr-defined]


def _step_by_step_gradients(backward: str, ctx: Any, gradient: Tensor, *_: object) -> _Gradients:
    wants_input = ctx.needs_input_grad[0]
    made = getattr(torch.ops.regista, backward)(gradient, *ctx.saved_tensors, *ctx.options, wants_input)
    dx, of_input, of_state, *of_biases, of_hidden = made
    biases = (of_bias if there else None for of_bias, there in zip(of_biases, ctx.has_bias, strict=True))
    return dx if wants_input else None, of_input, of_state, *biases, of_hidden, *(None for _ in ctx.options)
