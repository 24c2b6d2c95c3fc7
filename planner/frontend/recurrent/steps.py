"""What the kernels of recurrent layers share.

Tensors of a layer are time first: [T, N, width], T steps of N sequences.  ``reverse`` lets a layer begin at the last step.  The product with
the inputs of all steps is one product of matrices before the first step, and so are, behind the last one, the gradients of inputs and weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["input_gradient", "order", "projected", "states_before", "weight_gradient"]


def order(steps: int, reverse: bool) -> range:
    """The time steps in the order of the forward pass.

    >>> list(order(3, True))
    [2, 1, 0]
    """
    return range(steps - 1, -1, -1) if reverse else range(steps)


def projected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b of all steps, in new memory: x [T, N, I], weight [G, I], bias [G] -> [T, N, G]."""
    return linear(x.flatten(0, 1), weight, bias).view(*x.shape[:2], weight.shape[0])


def states_before(states: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """[T, N, H]: for each time step the state that it starts from.   states [T, N, H]: after each step.   first [N, H]: before all."""
    return torch.cat([states[1:], first[None]]) if reverse else torch.cat([first[None], states[:-1]])


def weight_gradient(gradient: Tensor, operand: Tensor) -> Tensor:
    """[G, H]: of the weight in ``operand @ weight.T``, summed over all steps.   gradient [T, N, G], operand [T, N, H]."""
    return gradient.flatten(0, 1).t() @ operand.flatten(0, 1)


def input_gradient(gradient: Tensor, weight: Tensor, wanted: bool) -> Tensor:
    """[T, N, I]: of the x in ``projected``; empty unless it is wanted.   gradient [T, N, G]."""
    if not wanted:
        return gradient.new_empty(0)
    return (gradient.flatten(0, 1) @ weight).view(*gradient.shape[:2], weight.shape[1])
