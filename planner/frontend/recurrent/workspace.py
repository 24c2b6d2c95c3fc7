"""oneDNN's kernels of an LSTM, and the buffer that they keep for the backward pass as a value of a Plan.

oneDNN keeps gates and states in a buffer of a form of its own, 15 to 19 numbers per step, sequence and unit.  As a value it is ``kept``, [N, K]: row n
holds the n-th part of the buffer's bytes, not sequence n.  So a part of the rows, or rows of two devices one below the other, are no buffer; that
is what ``marks`` is for, [N, 3]: in row n stands n, then N, then how long the buffer is.  Where a Plan moves both, a device sees by its marks that what
it got is not what one call has made of its N sequences, and performs the forward pass again (planner.frontend.recurrent.lstm).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["backward", "forward", "fresh_marks", "has_kernel", "held_in", "kept_width"]

aten = torch.ops.aten
_LSTM = 2
"""oneDNN's number of the mode."""
_BYTES = 4


def has_kernel(x: Tensor) -> bool:
    """Whether oneDNN performs a layer with this input: float32 on a CPU."""
    return x.device.type == "cpu" and x.dtype is torch.float32 and x.numel() > 0 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def kept_width(steps: int, inputs: int, units: int) -> int:
    """K: what is set aside per sequence.  A buffer that needs more is not kept: those of a few units, which one page per piece makes long.

    Ten pieces of [T + 1, N, units] and six of [T + 1, N, the larger of units and inputs], rows as long as oneDNN makes them [read off buffers of
    15 layers of 4 to 1024 units, AVX-512, torch 2.13].
    """
    return (steps + 1) * (10 * _row(units) + 6 * _row(max(units, inputs))) + 256


def _row(extent: int) -> int:
    whole = -(-extent // 16) * 16
    return whole + 16 * (whole % 256 == 0)


def fresh_marks(like: Tensor, sequences: int, length: int) -> Tensor:
    """[N, 3].   length: of the buffer in numbers of 4 bytes; 0: there is none."""
    numbers = torch.arange(sequences, dtype=torch.int32, device=like.device)
    return torch.stack([numbers, torch.full_like(numbers, sequences), torch.full_like(numbers, length)], 1)


def forward(
    x: Tensor, parameters: tuple[Tensor, ...], hidden: Tensor, cell: Tensor, reverse: bool, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """States [T, N, H], the last cell [N, H] and the marks of what is now in ``kept``, [N, K] without gaps.

    Args:
        parameters: both weights and both biases.
    """
    units = parameters[1].shape[1]
    given = (x.contiguous(), *parameters, hidden[None], cell[None])
    with torch.enable_grad():  # without, oneDNN keeps nothing
        states, _, last, buffer = aten.mkldnn_rnn_layer.default(*given, reverse, [], _LSTM, units, 1, True, False, False, True)
    length = buffer.numel() // _BYTES
    if length > kept.numel():
        length = 0
    else:
        kept.view(-1).view(torch.uint8)[: length * _BYTES].copy_(buffer)
    return states, last[0], fresh_marks(x, x.shape[1], length)


def held_in(kept: Tensor, marks: Tensor) -> Tensor | None:
    """The buffer, if the rows are those of one call; None: they are not, or there is none."""
    length = int(marks[0, 2])
    if length == 0 or not torch.equal(marks, fresh_marks(marks, kept.shape[0], length)):
        return None
    return kept.contiguous().view(-1).view(torch.uint8)[: length * _BYTES]


def backward(
    gradients: tuple[Tensor, Tensor | None],
    x: Tensor,
    parameters: tuple[Tensor, ...],
    hidden: Tensor,
    cell: Tensor,
    results: tuple[Tensor, Tensor],
    reverse: bool,
    buffer: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, both weights, a bias, hidden and cell.

    Args:
        gradients: of the states, [T, N, H], and of the last cell, [N, H]; None: zero.   results: the states and the last cell.
    """
    of_states, of_last = gradients
    states, last = results
    units = parameters[1].shape[1]
    of_cell = torch.zeros_like(last) if of_last is None else of_last
    made = aten.mkldnn_rnn_layer_backward.default(
        x.contiguous(),
        *parameters,
        hidden[None],
        cell[None],
        states,
        states[0 if reverse else -1][None],
        last[None],
        of_states.contiguous(),
        torch.zeros_like(hidden)[None],
        of_cell[None],
        reverse,
        _LSTM,
        units,
        1,
        True,
        True,
        False,
        [],
        False,
        buffer,
    )
    dx, of_input, of_state, bias, _, dhidden, dcell = made
    return dx, of_input, of_state, bias, dhidden.view(hidden.shape), dcell.view(cell.shape)
