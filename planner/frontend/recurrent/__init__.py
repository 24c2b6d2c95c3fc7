"""Recurrences over time as one op, layers per direction and CTC loss: kernels, and how torch's become them while they are traced."""

from collections.abc import Callable

from planner.frontend.recurrent.ctc import ctc, ctc_backward, ctc_losses
from planner.frontend.recurrent.gru import gru, gru_backward
from planner.frontend.recurrent.layers import recurrent_layers
from planner.frontend.recurrent.lengths import sequence_lengths
from planner.frontend.recurrent.lstm import lstm, lstm_backward, lstm_into
from planner.frontend.recurrent.rnn import rnn, rnn_backward

__all__ = ["KERNELS", "ctc_losses", "lstm_into", "recurrent_layers"]

KERNELS: dict[str, Callable[..., object]] = {
    "regista.lstm": lstm,
    "regista.lstm_backward": lstm_backward,
    "regista.gru": gru,
    "regista.gru_backward": gru_backward,
    "regista.rnn": rnn,
    "regista.rnn_backward": rnn_backward,
    "regista.ctc_loss": ctc,
    "regista.ctc_loss_backward": ctc_backward,
    "regista.sequence_lengths": sequence_lengths,
}
"""Target -> the function that performs it."""
