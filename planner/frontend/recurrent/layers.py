"""nn.LSTM, nn.GRU and nn.RNN while they are traced: per layer and direction one op, instead of some fifteen per time step.

    x --regista.lstm--> y --[dropout]--> next layer                   two directions: both read x, their y are concatenated

Packed sequences are the padded batch (packed).  What the ops do not cover stays torch's own, a chain of small ops per time step: autocast, dtypes
that differ, transforms of torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from planner.frontend.recurrent.packed import BatchSizes, PackedData, packed_sequences, padded_steps

__all__ = ["recurrent_layers"]

_VF = torch._VF
_States = tuple[Tensor, ...]
_Run = Callable[[Tensor, Sequence[Tensor], _States, bool], tuple[Tensor, _States]]
"""Performs one direction of one layer: input [T, N, I], parameters, first states, reverse -> hidden states [T, N, H], last states."""
_RunWithBias = Callable[[bool, Tensor, Sequence[Tensor], _States, bool], tuple[Tensor, _States]]
"""The same, told whether there are biases among the parameters."""
_Function = Callable[..., tuple[Tensor, ...]]


@contextmanager
def recurrent_layers() -> Iterator[None]:
    """Inside, torch's recurrent layers call the ops of this room."""
    own = {
        "lstm": partial(_lstm, torch.lstm),
        "gru": partial(_one_state, torch.gru, _run_gru),
        "rnn_tanh": partial(_one_state, torch.rnn_tanh, partial(_run_rnn, False)),
        "rnn_relu": partial(_one_state, torch.rnn_relu, partial(_run_rnn, True)),
    }
    before = {name: vars(_VF)[name] for name in own if name in vars(_VF)}
    vars(_VF).update(own)
    try:
        with packed_sequences():
            yield
    finally:
        for name in own:
            del vars(_VF)[name]
        vars(_VF).update(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """The options of a recurrent layer of torch, in the order in which torch's functions take them."""

    bias: bool
    layers: int
    dropout: float
    training: bool
    both_ways: bool
    batch_first: bool

    @staticmethod
    def of(options: Sequence[Any]) -> _Stack:
        bias, layers, dropout, training, both_ways, batch_first = options
        return _Stack(bias=bias, layers=layers, dropout=dropout, training=training, both_ways=both_ways, batch_first=batch_first)

    def run(self, run: _Run, x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All layers.   first: per kind of state [layers * directions, N, H].   Returns the output and the last states, stacked alike."""
        x = x.transpose(0, 1) if self.batch_first else x
        directions = (False, True) if self.both_ways else (False,)
        count = len(weights) // (self.layers * len(directions))
        last: list[_States] = []
        for layer in range(self.layers):
            made = []
            for reverse in directions:
                k = len(last)
                y, states = run(x, weights[k * count : (k + 1) * count], tuple(state[k] for state in first), reverse)
                made.append(y)
                last.append(states)
            x = torch.cat(made, -1) if self.both_ways else made[0]
            if self.dropout and self.training and layer + 1 < self.layers:
                x = torch.dropout(x, self.dropout, True)
        return x.transpose(0, 1) if self.batch_first else x, *(torch.stack(states) for states in zip(*last, strict=True))


def _covered(tensors: Sequence[Tensor]) -> bool:
    """Whether our ops compute what torch's do: one floating dtype, and neither autocast nor a transform of torch.func is active."""
    return (
        len({tensor.dtype for tensor in tensors}) == 1
        and tensors[0].is_floating_point()
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _lstm(torchs: _Function, *arguments: object) -> tuple[Tensor, ...]:
    match arguments:
        case [PackedData() as data, BatchSizes(), [Tensor() as hidden, Tensor() as cell], list() | tuple() as weights, *options]:
            return _packed(torchs, _run_lstm, data, (hidden, cell), weights, options)
        case [Tensor() as x, [Tensor() as hidden, Tensor() as cell], list() | tuple() as weights, *options]:
            if len(options) == 6 and _covered([x, hidden, cell, *weights]):
                stack = _Stack.of(options)
                return stack.run(partial(_run_lstm, stack.bias), x, (hidden, cell), weights)
    return torchs(*arguments)


def _one_state(torchs: _Function, run: _RunWithBias, *arguments: object) -> tuple[Tensor, ...]:
    match arguments:
        case [PackedData() as data, BatchSizes(), Tensor() as hidden, list() | tuple() as weights, *options]:
            return _packed(torchs, run, data, (hidden,), weights, options)
        case [Tensor() as x, Tensor() as hidden, list() | tuple() as weights, *options]:
            if len(options) == 6 and _covered([x, hidden, *weights]):
                stack = _Stack.of(options)
                return stack.run(partial(run, stack.bias), x, (hidden,), weights)
    return torchs(*arguments)


def _packed(
    torchs: _Function, run: _RunWithBias, data: PackedData, first: _States, weights: Sequence[Tensor], options: Sequence[Any]
) -> tuple[Any, ...]:
    stack = _Stack.of([*options, False])
    whole = run if _covered([data.padded, *first, *weights]) else partial(_run_torchs, torchs)
    y, *last = stack.run(partial(padded_steps, partial(whole, stack.bias), data.lengths), data.padded, first, weights)
    return data.of(y), *last


def _last(states: Tensor, reverse: bool) -> Tensor:
    return states[0 if reverse else -1]


def _run_torchs(
    torchs: _Function, has_bias: bool, x: Tensor, parameters: Sequence[Tensor], first: _States, reverse: bool
) -> tuple[Tensor, _States]:
    assert not reverse, "padded steps are forward"
    states = [state[None] for state in first]
    y, *last = torchs(x, states if len(states) > 1 else states[0], parameters, has_bias, 1, 0.0, False, False, False)
    return y.to(first[0].dtype), tuple(state[0].to(first[0].dtype) for state in last)  # as torch's packed form has them under autocast


def _run_lstm(has_bias: bool, x: Tensor, parameters: Sequence[Tensor], first: _States, reverse: bool) -> tuple[Tensor, _States]:
    of_input, of_state, *rest = parameters
    biases, projection = rest[:2] if has_bias else (None, None), rest[-1] if len(rest) % 2 else None
    keeps = torch.is_grad_enabled() and projection is None and x.dtype is torch.float32
    _, states, cell, _ = torch.ops.regista.lstm(x, of_input, of_state, *biases, *first, projection, reverse, keeps)
    return states, (_last(states, reverse), cell)


def _run_gru(has_bias: bool, x: Tensor, parameters: Sequence[Tensor], first: _States, reverse: bool) -> tuple[Tensor, _States]:
    of_input, of_state, *biases = parameters
    states, _, _ = torch.ops.regista.gru(x, of_input, of_state, *(biases or (None, None)), *first, reverse)
    return states, (_last(states, reverse),)


def _run_rnn(relu: bool, has_bias: bool, x: Tensor, parameters: Sequence[Tensor], first: _States, reverse: bool) -> tuple[Tensor, _States]:
    of_input, of_state, *biases = parameters
    bias = biases[0] + biases[1] if biases else None
    states: Tensor = torch.ops.regista.rnn(x, of_input, of_state, bias, *first, relu, reverse)
    return states, (_last(states, reverse),)
