"""One direction of one layer of nn.RNN as one op each way: regista.rnn and regista.rnn_backward.

(1)  y_t = act(x_t V^T + b + h W^T)          h: the state before the step;  act: tanh or relu                [Elman 1990]
(2)  da  = (dy_t + da_{t+1} W) act'(y_t)     from the last step to the first
"""

from __future__ import annotations

import torch
from torch import Tensor

from planner.frontend.recurrent.register import register_step_by_step
from planner.frontend.recurrent.steps import input_gradient, order, projected, states_before, weight_gradient

__all__ = ["rnn", "rnn_backward"]

aten = torch.ops.aten


def rnn(x: Tensor, of_input: Tensor, of_state: Tensor, bias: Tensor | None, hidden: Tensor, relu: bool, reverse: bool) -> Tensor:
    """Equation (1): x [T, N, I], weights V [H, I] and W [H, H], bias [H], hidden [N, H] -> hidden states [T, N, H]."""
    states = projected(x, of_input, bias)
    all_states, turned = states.unbind(0), of_state.t()
    for t in order(x.shape[0], reverse):
        all_states[t].addmm_(hidden, turned)
        hidden = all_states[t].relu_() if relu else all_states[t].tanh_()
    return states


def rnn_backward(
    gradient: Tensor,
    x: Tensor,
    of_input: Tensor,
    of_state: Tensor,
    hidden: Tensor,
    states: Tensor,
    relu: bool,
    reverse: bool,
    wants_input: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Equation (2): the gradients of x (empty unless it is wanted), of_input, of_state, bias and hidden, from that of the states, [T, N, H]."""
    whole, dh = states.new_empty(states.shape), states.new_empty(hidden.shape)
    gradients, all_states, da = gradient.unbind(0), states.unbind(0), whole.unbind(0)
    later: Tensor | None = None
    for t in reversed(order(states.shape[0], reverse)):
        of_step = gradients[t] if later is None else torch.addmm(gradients[t], later, of_state, out=dh)
        later = da[t]
        if relu:
            aten.threshold_backward.grad_input(of_step, all_states[t], 0, grad_input=later)
        else:
            aten.tanh_backward.grad_input(of_step, all_states[t], grad_input=later)
    assert later is not None, "a sequence has at least one step"
    return (
        input_gradient(whole, of_input, wants_input),
        weight_gradient(whole, x),
        weight_gradient(whole, states_before(states, hidden, reverse)),
        whole.sum((0, 1)),
        later @ of_state,
    )


def _rnn_type(x: Tensor, of_input: Tensor, *others: object) -> Tensor:
    return x.new_empty((*x.shape[:2], of_input.shape[0]))


register_step_by_step("rnn", (rnn, rnn_backward), _rnn_type, biases=1)
