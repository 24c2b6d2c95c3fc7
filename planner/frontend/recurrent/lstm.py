"""One direction of one LSTM layer as one op each way: regista.lstm and regista.lstm_backward, both performed by torch's own fused kernel.

Per time step, h and c being the states before it (those of the step after it in the reverse direction), and * the product per element:

    (1)  i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of (x_t V^T + b_x + h W^T + b_h)
    (2)  c_t = f * c + i * g
    (3)  y_t = o * tanh(c_t), times P^T where the layer projects its states           [Hochreiter & Schmidhuber 1997; Sak et al. 2014]

What a fused kernel keeps for its backward pass is a buffer in a form of its own (oneDNN's, cuDNN's), of which parts of the batch are no parts,
so no Plan could move it.  Therefore nothing is kept: the backward op performs the forward pass again and then torch's backward.  That is
quicker than to keep gates and cells and go step by step (1.3 against 2.3 times torch's LSTM of 128 steps on one core; the products of matrices
of oneDNN are twice as fast as MKL's there, 2026-11), and a layer holds a sixth of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.frontend.recurrent.register import empty_like, register

__all__ = ["lstm", "lstm_backward"]

_STATE_BIAS = 4
"""Its place among the operands."""


def lstm(
    x: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    input_bias: Tensor | None,
    state_bias: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    projection: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Equations (1) to (3).

    Args:
        x: [T, N, I], T steps of N sequences.   of_input, of_state: the weights V [4 H, I] and W [4 H, P].   input_bias, state_bias: [4 H].
        hidden, cell: before the first step, [N, P] and [N, H].   projection: [P, H]; None: P is H.

    Returns:
        Hidden states [T, N, P], the last cell [N, H].
    """
    with torch.no_grad():
        return _performed((x, of_input, of_state, input_bias, state_bias, hidden, cell, projection), reverse, trains=False)


def _performed(operands: Sequence[Tensor | None], reverse: bool, *, trains: bool) -> tuple[Tensor, Tensor]:
    x, of_input, of_state, input_bias, state_bias, hidden, cell, projection = operands
    assert x is not None and hidden is not None and cell is not None
    parameters = [parameter for parameter in (of_input, of_state, input_bias, state_bias, projection) if parameter is not None]
    given, states = x.flip(0) if reverse else x, (hidden[None], cell[None])
    y, _, last = torch.lstm(given, states, parameters, input_bias is not None, 1, 0.0, trains, False, False)
    return y.flip(0) if reverse else y, last[0]


def lstm_backward(
    gradient: Tensor,
    cell_gradient: Tensor | None,
    x: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    input_bias: Tensor | None,
    state_bias: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    projection: Tensor | None,
    reverse: bool,
    wants_input: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The adjoint of ``lstm``.

    Args:
        gradient: of the hidden states, [T, N, P].   cell_gradient: of the last cell, [N, H]; None: zero.
        wants_input: whether the gradient of x is computed.

    Returns:
        The gradients of x, of_input, of_state, a bias (both have the same), hidden, cell and projection; empty ones of what is not wanted or
        not there.
    """
    operands = (x, of_input, of_state, input_bias, state_bias, hidden, cell, projection)
    leaves = [None if operand is None else operand.detach() for operand in operands]
    wanted = [leaf for k, leaf in enumerate(leaves) if k != _STATE_BIAS]  # its gradient is that of the other bias
    asked = [leaf for k, leaf in enumerate(wanted) if leaf is not None and (k or wants_input)]
    for leaf in asked:
        leaf.requires_grad_()
    with _recorded_by_autograd():
        made = _performed(leaves, reverse, trains=True)
    results, incoming = (made, (gradient, cell_gradient)) if cell_gradient is not None else (made[:1], (gradient,))
    computed = iter(torch.autograd.grad(results, asked, incoming))
    return tuple(next(computed) if any(leaf is one for one in asked) else x.new_empty(0) for leaf in wanted)  # type: ignore[return-value]


@contextmanager
def _recorded_by_autograd() -> Iterator[None]:
    """Inside, autograd records what is computed even where the caller is an op, within which torch switches recording off."""
    with torch.enable_grad(), torch._C._PreserveDispatchKeyGuard():
        torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality, False)
        yield


def _lstm_type(*operands: Any) -> tuple[Tensor, Tensor]:
    x, _, _, _, _, hidden, cell, _, _ = operands
    return x.new_empty((*x.shape[:2], hidden.shape[1])), x.new_empty(cell.shape)


def _lstm_backward_type(gradient: Tensor, cell_gradient: Tensor | None, *operands: Any) -> tuple[Tensor, ...]:
    x, of_input, of_state, bias, _, hidden, cell, projection, _, wants_input = operands
    return empty_like(x, x if wants_input else None, of_input, of_state, bias, hidden, cell, projection)


def _keep(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, reverse = inputs
    ctx.save_for_backward(*operands)
    ctx.set_materialize_grads(False)
    ctx.reverse = reverse  # type: ignore[attr-defined]


def _differentiated(ctx: Any, gradient: Tensor | None, cell_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
    operands = ctx.saved_tensors
    x, _, _, bias, _, hidden, _, projection = operands
    if gradient is None:
        gradient = x.new_zeros((*x.shape[:2], hidden.shape[1]))
    wants_input = ctx.needs_input_grad[0]
    made = torch.ops.regista.lstm_backward(gradient, cell_gradient, *operands, ctx.reverse, wants_input)
    dx, dinput, dstate, dbias, dhidden, dcell, dprojection = made
    biases = (None, None) if bias is None else (dbias, dbias)
    return dx if wants_input else None, dinput, dstate, *biases, dhidden, dcell, None if projection is None else dprojection, None


register("lstm", (lstm, lstm_backward), (_lstm_type, _lstm_backward_type), _keep, _differentiated)
