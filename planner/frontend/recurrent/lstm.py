"""One direction of one LSTM layer as one op each way: regista.lstm and regista.lstm_backward, both performed by torch's own fused kernels.

Per time step, h and c being the states before it (those of the step after it in the reverse direction), and * the product per element:

    (1)  i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of (x_t V^T + b_x + h W^T + b_h)
    (2)  c_t = f * c + i * g
    (3)  y_t = o * tanh(c_t), times P^T where the layer projects its states           [Hochreiter & Schmidhuber 1997; Sak et al. 2014]

What a fused kernel keeps for its backward pass is a buffer in a form of its own, of which parts of the batch are no parts.  That of oneDNN goes
along as one more result, with marks by which the backward op sees whether a Plan has moved it (planner.frontend.recurrent.workspace).  Where it
has, and where another kernel serves (cuDNN, projections, other dtypes), the backward op performs the forward pass again and then torch's backward:
1.3 times torch's time, where gates and cells that are kept and read step by step take 2.3 times (128 steps on one core, 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.frontend.recurrent import workspace
from planner.frontend.recurrent.register import empty_like, register

__all__ = ["lstm", "lstm_backward", "lstm_into"]

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
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equations (1) to (3).

    Args:
        x: [T, N, I], T steps of N sequences.   of_input, of_state: the weights V [4 H, I] and W [4 H, P].   input_bias, state_bias: [4 H].
        hidden, cell: before the first step, [N, P] and [N, H].   projection: [P, H]; None: P is H.
        keeps: of a layer in float32 without projection: whether what oneDNN keeps for the backward pass is handed out.

    Returns:
        What is kept, [N, K], hidden states [T, N, P], the last cell [N, H], and marks of what is kept, [N, 3]; where nothing is kept, the first and
        the last are empty.
    """
    return lstm_into(x, of_input, of_state, input_bias, state_bias, hidden, cell, projection, reverse, keeps)


def lstm_into(
    x: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    input_bias: Tensor | None,
    state_bias: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    projection: Tensor | None,
    reverse: bool,
    keeps: bool,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, with what is kept in the memory ``out``."""
    kept = out if out is not None else x.new_empty(_kept_shape(x, hidden) if keeps else 0)
    with torch.no_grad():
        if keeps and workspace.has_kernel(x) and kept.is_contiguous():
            parameters = _with_biases(of_input, of_state, input_bias, state_bias)
            return kept, *workspace.forward(x, parameters, hidden, cell, reverse, kept)
        made = _performed((x, of_input, of_state, input_bias, state_bias, hidden, cell, projection), reverse, trains=False)
    return kept, *made, workspace.fresh_marks(x, x.shape[1], 0) if keeps else x.new_empty(0, dtype=torch.int32)


def _kept_shape(x: Tensor, hidden: Tensor) -> tuple[int, int]:
    steps, sequences, inputs = x.shape
    return sequences, workspace.kept_width(steps, inputs, hidden.shape[1])


def _with_biases(of_input: Tensor, of_state: Tensor, input_bias: Tensor | None, state_bias: Tensor | None) -> tuple[Tensor, ...]:
    if input_bias is None or state_bias is None:
        input_bias = state_bias = of_input.new_zeros(of_input.shape[0])
    return of_input, of_state, input_bias, state_bias


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
    kept: Tensor | None,
    marks: Tensor | None,
    states: Tensor | None,
    last: Tensor | None,
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
        kept, marks, states, last: what ``lstm`` returned; None where it kept nothing.
        wants_input: whether the gradient of x is computed.

    Returns:
        The gradients of x, of_input, of_state, a bias (both have the same), hidden, cell and projection; empty ones of what is not wanted or
        not there.
    """
    if kept is not None and marks is not None and states is not None and last is not None and workspace.has_kernel(x):
        buffer = workspace.held_in(kept, marks)
        if buffer is not None:
            parameters = _with_biases(of_input, of_state, input_bias, state_bias)
            made = workspace.backward((gradient, cell_gradient), x, parameters, hidden, cell, (states, last), reverse, buffer)
            dx, of_weight, of_recurrence, bias, *of_states = made
            dx = dx if wants_input else x.new_empty(0)
            bias = bias if input_bias is not None else x.new_empty(0)
            return dx, of_weight, of_recurrence, bias, *of_states, x.new_empty(0)  # type: ignore[return-value]
    operands = (x, of_input, of_state, input_bias, state_bias, hidden, cell, projection)
    return _performed_again(gradient, cell_gradient, operands, reverse, wants_input)


def _performed_again(
    gradient: Tensor, cell_gradient: Tensor | None, operands: Sequence[Tensor | None], reverse: bool, wants_input: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    # Their own version counters: others write meanwhile to the memory in which they lie, and detach() would count that as a change of theirs.
    leaves = [None if operand is None else operand.data for operand in operands]
    wanted = [leaf for k, leaf in enumerate(leaves) if k != _STATE_BIAS]  # its gradient is that of the other bias
    asked = [leaf for k, leaf in enumerate(wanted) if leaf is not None and (k or wants_input)]
    for leaf in asked:
        leaf.requires_grad_()
    with _recorded_by_autograd():
        made = _performed(leaves, reverse, trains=True)
    results, incoming = (made, (gradient, cell_gradient)) if cell_gradient is not None else (made[:1], (gradient,))
    computed = iter(torch.autograd.grad(results, asked, incoming))
    return tuple(next(computed) if any(leaf is one for one in asked) else gradient.new_empty(0) for leaf in wanted)  # type: ignore[return-value]


@contextmanager
def _recorded_by_autograd() -> Iterator[None]:
    """Inside, autograd records what is computed even where the caller is an op, within which torch switches recording off."""
    with torch.enable_grad(), torch._C._PreserveDispatchKeyGuard():
        torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality, False)
        yield


def _lstm_type(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, _, _, _, _, hidden, cell, _, _, keeps = operands
    states, last = x.new_empty((*x.shape[:2], hidden.shape[1])), x.new_empty(cell.shape)
    marks = x.new_empty((x.shape[1], 3) if keeps else 0, dtype=torch.int32)
    return x.new_empty(_kept_shape(x, hidden) if keeps else 0), states, last, marks


def _lstm_backward_type(gradient: Tensor, *operands: Any) -> tuple[Tensor, ...]:
    x, of_input, of_state, bias, _, hidden, cell, projection, _, wants_input = operands[5:]
    return empty_like(x, x if wants_input else None, of_input, of_state, bias, hidden, cell, projection)


def _keep(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    *operands, reverse, keeps = inputs
    kept, states, last, marks = output
    ctx.save_for_backward(*(kept, marks, states, last) if keeps else (None,) * 4, *operands)
    ctx.mark_non_differentiable(kept, marks)
    ctx.set_materialize_grads(False)
    ctx.reverse = reverse  # type: ignore[attr-defined]


def _differentiated(
    ctx: Any, _kept: None, gradient: Tensor | None, cell_gradient: Tensor | None, _marks: None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    x, _, _, bias, _, hidden, _, projection = saved[4:]
    if gradient is None:
        gradient = x.new_zeros((*x.shape[:2], hidden.shape[1]))
    wants_input = ctx.needs_input_grad[0]
    made = torch.ops.regista.lstm_backward(gradient, cell_gradient, *saved, ctx.reverse, wants_input)
    dx, dinput, dstate, dbias, dhidden, dcell, dprojection = made
    biases = (None, None) if bias is None else (dbias, dbias)
    of_projection = None if projection is None else dprojection
    return dx if wants_input else None, dinput, dstate, *biases, dhidden, dcell, of_projection, None, None


register("lstm", (lstm, lstm_backward), (_lstm_type, _lstm_backward_type), _keep, _differentiated)
