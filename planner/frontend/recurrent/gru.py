"""One direction of one GRU layer as one op each way: regista.gru and regista.gru_backward.

Per time step, h being the state before it (after it in the reverse direction), and * the product per element:

    (1)  a_r, a_z, k = h W^T + b_h                          k is returned for the backward pass, as r, z and n are
    (2)  p_r, p_z, p_n = x_t V^T + b_x;   r, z = sigmoid(p_r + a_r), sigmoid(p_z + a_z)
    (3)  n   = tanh(p_n + r * k)
    (4)  y_t = n + z * (h - n)                              [Cho et al. 2014, in the form of cuDNN and torch]

Backward, from the last step to the first, with dh = dy_t + dh_{t+1} * z_{t+1} + da_{t+1} W:

    (5)  da = dh * (1 - z)(1 - n^2) k r (1 - r),   dh * (h - n) z (1 - z),   dh * (1 - z)(1 - n^2) r
    (6)  dp = da_r, da_z, dh * (1 - z)(1 - n^2)

All factors are known before the first step, so that a step is one product of matrices and two operations per element.
"""

from __future__ import annotations

import torch
from torch import Tensor

from planner.frontend.recurrent.register import register_step_by_step
from planner.frontend.recurrent.steps import input_gradient, order, projected, states_before, weight_gradient

__all__ = ["gru", "gru_backward"]

aten = torch.ops.aten


def gru(
    x: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    input_bias: Tensor | None,
    state_bias: Tensor | None,
    hidden: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations (1) to (4).

    Args:
        x: [T, N, I].   of_input, of_state: the weights V [3 H, I] and W [3 H, H].   input_bias, state_bias: [3 H].
        hidden: before the first step, [N, H].

    Returns:
        Hidden states [T, N, H]; for the backward pass r, z and n, [T, N, 3 H], and k, [T, N, H].
    """
    gates = projected(x, of_input, input_bias)
    steps, batch, width = x.shape[0], x.shape[1], hidden.shape[1]
    states, candidates = gates.new_empty((steps, batch, width)), gates.new_empty((steps, batch, width))
    r, z, n = (gate.unbind(0) for gate in gates.chunk(3, -1))
    both, all_states, k = gates[..., : 2 * width].unbind(0), states.unbind(0), candidates.unbind(0)
    added, turned = gates.new_empty((batch, 3 * width)), of_state.t()
    added_both, added_new = added[:, : 2 * width], added[:, 2 * width :]
    for t in order(steps, reverse):
        if state_bias is None:
            torch.mm(hidden, turned, out=added)
        else:
            torch.addmm(state_bias, hidden, turned, out=added)
        both[t].add_(added_both).sigmoid_()
        k[t].copy_(added_new)
        n[t].addcmul_(r[t], added_new).tanh_()
        torch.lerp(n[t], hidden, z[t], out=all_states[t])
        hidden = all_states[t]
    return states, gates, candidates


def gru_backward(
    gradient: Tensor,
    x: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    hidden: Tensor,
    states: Tensor,
    gates: Tensor,
    candidates: Tensor,
    reverse: bool,
    wants_input: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Equations (5) and (6).

    Args:
        gradient: of the hidden states, [T, N, H].   states, gates, candidates: what ``gru`` returned.
        wants_input: whether the gradient of x is computed.

    Returns:
        The gradients of x (empty unless it is wanted), of_input, of_state, input_bias, state_bias and hidden.
    """
    steps, batch, width = states.shape
    r, z, n = gates.chunk(3, -1)
    before = states_before(states, hidden, reverse)
    of_new = aten.tanh_backward(1 - z, n)
    per_gate = gates.new_empty((steps, batch, 3, width))  # the factors of (5), then da
    aten.sigmoid_backward.grad_input(of_new * candidates, r, grad_input=per_gate[:, :, 0])
    aten.sigmoid_backward.grad_input(before - n, z, grad_input=per_gate[:, :, 1])
    torch.mul(of_new, r, out=per_gate[:, :, 2])
    whole, dhs = per_gate.flatten(2), gates.new_empty((steps, batch, width))
    by_state, da, dh, updates, gradients = per_gate.unbind(0), whole.unbind(0), dhs.unbind(0), z.unbind(0), gradient.unbind(0)
    later: int | None = None
    for t in reversed(order(steps, reverse)):
        if later is None:
            dh[t].copy_(gradients[t])
        else:
            torch.addmm(gradients[t], da[later], of_state, out=dh[t]).addcmul_(dh[later], updates[later])
        by_state[t].mul_(dh[t][:, None])
        later = t
    assert later is not None, "a sequence has at least one step"
    dhidden = torch.mul(dh[later], updates[later]).addmm_(da[later], of_state)
    of_state_gradient, of_state_bias = weight_gradient(whole, before), whole.sum((0, 1))
    torch.mul(of_new, dhs, out=per_gate[:, :, 2])  # da becomes dp
    return (
        input_gradient(whole, of_input, wants_input),
        weight_gradient(whole, x),
        of_state_gradient,
        whole.sum((0, 1)),
        of_state_bias,
        dhidden,
    )


def _gru_type(x: Tensor, of_input: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor]:
    steps_and_batch, gates = x.shape[:2], of_input.shape[0]
    states, kept, candidates = (x.new_empty((*steps_and_batch, width)) for width in (gates // 3, gates, gates // 3))
    return states, kept, candidates


register_step_by_step("gru", (gru, gru_backward), _gru_type, biases=2)
