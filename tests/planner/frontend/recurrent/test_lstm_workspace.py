"""What oneDNN keeps of an LSTM goes along as a value; where it was moved, the backward pass performs the forward pass again, to the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import regista
from planner.frontend.recurrent import recurrent_layers
from planner.frontend.recurrent.lstm import lstm, lstm_backward, lstm_into
from tests.planner.frontend.recurrent.test_recurrent_layers import results

room = sys.modules["planner.frontend.recurrent.lstm"]
STEPS, SEQUENCES, INPUTS, UNITS = 12, 6, 40, 32
Operands = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor, None, bool]

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def operands(*, biased: bool = True, reverse: bool = False) -> Operands:
    torch.manual_seed(0)
    x, of_input, of_state = torch.randn(STEPS, SEQUENCES, INPUTS), torch.randn(4 * UNITS, INPUTS) / 8, torch.randn(4 * UNITS, UNITS) / 8
    biases = (torch.randn(4 * UNITS), torch.randn(4 * UNITS)) if biased else (None, None)
    return x, of_input, of_state, *biases, torch.randn(SEQUENCES, UNITS), torch.randn(SEQUENCES, UNITS), None, reverse


def gradients() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, SEQUENCES, UNITS, generator=generator), torch.randn(SEQUENCES, UNITS, generator=generator)


def refuse(*_: object) -> None:
    raise AssertionError("the forward pass is performed again")


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "biases"])
def test_the_backward_pass_reads_what_was_kept(monkeypatch: pytest.MonkeyPatch, biased: bool, reverse: bool) -> None:
    given = operands(biased=biased, reverse=reverse)
    of_states, of_last = gradients()
    kept, states, last, marks = lstm(*given, True)
    again = lstm(*given, False)
    torch.testing.assert_close((states, last), (again[1], again[2]))
    for of_cell in (None, of_last):
        wanted = lstm_backward(of_states, of_cell, None, None, None, None, *given, True)
        with monkeypatch.context() as patched:
            patched.setattr(room, "_performed_again", refuse)
            made = lstm_backward(of_states, of_cell, kept, marks, states, last, *given, True)
            twice = lstm_backward(of_states, of_cell, kept, marks, states, last, *given, True)
        torch.testing.assert_close(made, wanted)
        assert all(torch.equal(a, b) for a, b in zip(made, twice, strict=True)), "what is kept may be read more than once"


MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "the first half of the sequences": lambda t: t[: SEQUENCES // 2],
    "the second half": lambda t: t[SEQUENCES // 2 :],
    "twice": lambda t: torch.cat([t, t]),
    "in another order": lambda t: t.flip(0),
}


@pytest.mark.parametrize("move", MOVED.values(), ids=list(MOVED))
def test_what_was_moved_is_not_read(monkeypatch: pytest.MonkeyPatch, move: Callable[[Tensor], Tensor]) -> None:
    x, *weights, hidden, cell, none, reverse = operands()
    kept, states, last, marks = (
        move(t) if t.ndim == 2 else move(t.transpose(0, 1)).transpose(0, 1)
        for t in lstm(x, *weights, hidden, cell, none, reverse, True)  # type: ignore[call-arg]
    )
    of_states = move(gradients()[0].transpose(0, 1)).transpose(0, 1)
    given = (move(x.transpose(0, 1)).transpose(0, 1), *weights, move(hidden), move(cell), none, reverse)
    wanted = lstm_backward(of_states, None, None, None, None, None, *given, True)  # type: ignore[arg-type]
    made = lstm_backward(of_states, None, kept, marks, states, last, *given, True)  # type: ignore[arg-type]
    torch.testing.assert_close(made, wanted)
    monkeypatch.setattr(room, "_performed_again", refuse)
    with pytest.raises(AssertionError, match="performed again"):
        lstm_backward(of_states, None, kept, marks, states, last, *given, True)  # type: ignore[arg-type]


def test_what_is_kept_is_written_to_the_memory_that_is_given() -> None:
    given = operands()
    kept, states, last, marks = lstm(*given, True)
    out = torch.empty_like(kept)
    made = lstm_into(*given, True, out=out)
    assert made[0] is out
    torch.testing.assert_close(made[1:], (states, last, marks))
    of_states, _ = gradients()
    torch.testing.assert_close(
        lstm_backward(of_states, None, out, marks, states, last, *given, True),
        lstm_backward(of_states, None, kept, marks, states, last, *given, True),
    )


def test_a_layer_too_small_for_what_was_set_aside_is_performed_again() -> None:
    module, x = nn.LSTM(4, 6), torch.randn(5, 2, 4)
    wanted = results(module, x, None)
    with recurrent_layers():
        computed = results(module, x, None)
    torch.testing.assert_close(computed, wanted)
    *_, marks = lstm(x, *(p.detach() for p in module.parameters()), torch.zeros(2, 6), torch.zeros(2, 6), None, False, True)  # type: ignore[arg-type]
    assert int(marks[0, 2]) == 0


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}], ids=["one", "two both ways", "no bias"]
)
def test_a_layer_in_float32_computes_what_torch_computes_and_performs_nothing_again(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    monkeypatch.setattr(room, "_performed_again", refuse)
    torch.manual_seed(0)
    module, x = nn.LSTM(INPUTS, UNITS, **options), torch.randn(STEPS, STEPS, INPUTS)  # type: ignore[arg-type]
    wanted = results(module, x, None)
    with recurrent_layers():
        computed = results(module, x, None)
    torch.testing.assert_close(computed, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("performer", [regista.Performer.REFERENCE, regista.Performer.THREADS], ids=["reference", "threads"])
def test_data_parallel_training_performs_nothing_again(monkeypatch: pytest.MonkeyPatch, performer: regista.Performer) -> None:
    torch.manual_seed(0)
    program = regista.Program(Reader(), torch.randn(32, STEPS, INPUTS), optimizer=regista.SGD(lr=0.1))
    alone = regista.run(regista.plan(program, "local:1"), program, steps=2, performer=regista.Performer.REFERENCE)
    monkeypatch.setattr(room, "_performed_again", refuse)
    plan = regista.plan(program, "local:2", pins=["input.0=S(0)"], micro_batches=1)
    outcome = regista.run(plan, program, steps=2, performer=performer)
    assert outcome.losses == pytest.approx(alone.losses, rel=1e-6)
    for name, value in alone.states.items():
        torch.testing.assert_close(outcome.states[name], value, rtol=1e-4, atol=1e-5)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(INPUTS, UNITS, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)[0]
        return y.square().mean()
