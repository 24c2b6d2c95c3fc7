"""Cases of recurrent layers (both directions, with and without biases, projections and a gradient of the last cell) and of CTC loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from planner.frontend.recurrent import KERNELS
from tests.cases.opset_cases.drawing import Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


def _lstm(t: str, d: Draw) -> Iterator[Case]:
    steps, batch, inputs, width = 3, d.size(), 6, 6
    for units, reverse in ((width, False), (3, True)):
        x, of_input, of_state = d.real(steps, batch, inputs), d.real(4 * width, inputs), d.real(4 * width, units)
        hidden, cell = d.real(batch, units), d.real(batch, width)
        projection, biases = (d.real(units, width), (None, None)) if units != width else (None, (d.real(4 * width), d.real(4 * width)))
        given = (x, of_input, of_state, *biases, hidden, cell, projection, reverse)
        if "backward" not in t:
            yield make_case(t, *given, False)
            continue
        made = KERNELS["regista.lstm"](*given, True)
        kept, states, last, marks = made  # type: ignore[misc]
        for of_cell, before in (
            (None, (None,) * 4),
            (d.real(batch, width), (kept, marks, states, last) if units == width else (None,) * 4),
        ):
            yield make_case(t, d.real(steps, batch, units), of_cell, *before, *given, reverse)


def _gru(t: str, d: Draw) -> Iterator[Case]:
    steps, batch, inputs, width = 3, d.size(), 6, 6
    for biased in (False, True):
        x, of_input, of_state = d.real(steps, batch, inputs), d.real(3 * width, inputs), d.real(3 * width, width)
        biases = (d.real(3 * width), d.real(3 * width)) if biased else (None, None)
        hidden = d.real(batch, width)
        if "backward" not in t:
            yield make_case(t, x, of_input, of_state, *biases, hidden, biased)
            continue
        kept = _results("regista.gru", x, of_input, of_state, *biases, hidden, biased)
        yield make_case(t, d.real(steps, batch, width), x, of_input, of_state, hidden, *kept, biased, biased)


def _rnn(t: str, d: Draw) -> Iterator[Case]:
    steps, batch, inputs, width = 3, d.size(), 6, 6
    for relu in (False, True):
        x, of_input, of_state = d.real(steps, batch, inputs), d.real(width, inputs), d.real(width, width)
        bias, hidden = d.real(width) if relu else None, d.real(batch, width)
        if "backward" not in t:
            yield make_case(t, x, of_input, of_state, bias, hidden, relu, relu)
            continue
        (states,) = _results("regista.rnn", x, of_input, of_state, bias, hidden, relu, relu)
        yield make_case(t, d.real(steps, batch, width), x, of_input, of_state, hidden, states, relu, relu, relu)


def _ctc(t: str, d: Draw) -> Iterator[Case]:
    steps, batch, classes, width = 7, d.size(), 4, 3
    for zero_infinity in (False, True):
        log_probs, targets = d.real(steps, batch, classes).log_softmax(-1), 1 + d.index(classes - 1, batch, width)
        input_lengths, target_lengths = 6 + d.index(2, batch), 1 + d.index(width, batch)
        given = (log_probs, targets, input_lengths, target_lengths)
        if "backward" not in t:
            yield make_case(t, *given, 0, zero_infinity)
            continue
        yield make_case(t, d.real(batch), *given, *_results("regista.ctc_loss", *given, 0, zero_infinity), 0, zero_infinity)


def _lengths(t: str, d: Draw) -> Iterator[Case]:
    lengths = 1 + d.index(7, d.size())
    yield make_case(t, lengths, 7, False)
    yield make_case(t, lengths.sort(descending=True).values, 7, True)


def _results(target: str, *given: object) -> tuple[Tensor, ...]:
    made = KERNELS[target](*given)
    return made if isinstance(made, tuple) else (made,)  # type: ignore[return-value]


_each("regista.lstm regista.lstm_backward", _lstm)
_each("regista.gru regista.gru_backward", _gru)
_each("regista.rnn regista.rnn_backward", _rnn)
_each("regista.ctc_loss regista.ctc_loss_backward", _ctc)
_each("regista.sequence_lengths", _lengths)
