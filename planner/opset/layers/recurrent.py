"""Recurrences over time (planner.frontend.recurrent): the sequences of a batch are independent, everything else is whole.

Factors: n sequences; t steps, i inputs, h units, p projected units and g gates are whole, because each step reads all of the one before.

    lstm       (t n i)(g i)(g p)[(g)(g)](n p)(n h)[(p h)]  ->  n k,  t n p,  n h,  n m              gru, rnn alike (k, m: what is kept)
    ctc loss   (t n c)(n s)(n)(n)  ->  n,  n t a        c classes, s targets, a = 2 s + 1 forward variables per step
    lengths    (n)  ->  n                                        of packed sequences
    backward   batch split: the gradients of weights and biases P, the others S on n; linear in the gradients that come in
"""

from __future__ import annotations

from planner.ir.graph import Op
from planner.opset.rule import FactorRule, Factors, Types
from planner.opset.spec import OpSpec, integer, is_ref, no_flop, shape_of

__all__ = ["TABLE"]

_WHOLE = frozenset("tighpcsakm")
_INPUT, _STATES, _GATES = ("t", "n", "i"), ("t", "n", "p"), ("t", "n", "g")
_STATE, _CELL = ("n", "p"), ("n", "h")
_OF_INPUT, _OF_STATE, _BIAS, _PROJECTION = ("g", "i"), ("g", "p"), ("g",), ("p", "h")
_NOTHING = ("",)
_KEPT, _MARKS = ("n", "k"), ("n", "m")
_LOSSES, _ALPHA = ("n",), ("n", "t", "a")
_CTC_OPERANDS = (("t", "n", "c"), ("n", "s"), ("n",), ("n",))


def _if(present: bool, factors: Factors) -> tuple[Factors, ...]:
    return (factors,) if present else ()


def _lstm(op: Op, types: Types) -> FactorRule:
    """x, of_input, of_state, input_bias?, state_bias?, hidden, cell, projection?, reverse, keeps -> kept, states, last cell, marks."""
    kept, marks = (_KEPT, _MARKS) if integer(op, 9, "keeps", 0) else (_NOTHING, _NOTHING)
    return FactorRule(operands=_lstm_operands(op, 0), results=(kept, _STATES, _CELL, marks), whole=_WHOLE)


def _lstm_backward(op: Op, types: Types) -> FactorRule:
    """gradient, cell_gradient?, kept, marks, states, last cell (all or none), then the operands of lstm, reverse, wants_input."""
    of_cell = _if(is_ref(op, 1, "cell_gradient"), _CELL)
    kept = (_KEPT, _MARKS, _STATES, _CELL) if is_ref(op, 2, "kept") else ()
    bias, projection = (
        factors if is_ref(op, at, name) else _NOTHING for at, name, factors in ((9, "input_bias", _BIAS), (13, "projection", _PROJECTION))
    )
    return FactorRule(
        operands=(_STATES, *of_cell, *kept, *_lstm_operands(op, 6)),
        results=(_of_input(op, 15), _OF_INPUT, _OF_STATE, bias, _STATE, _CELL, projection),
        whole=_WHOLE,
        linear=(frozenset({0, 1} if of_cell else {0}),),
    )


def _lstm_operands(op: Op, first: int) -> tuple[Factors, ...]:
    """Factors of the operands of lstm, of which x is the argument ``first``."""
    biases = (*_if(is_ref(op, first + 3, "input_bias"), _BIAS), *_if(is_ref(op, first + 4, "state_bias"), _BIAS))
    projection = _if(is_ref(op, first + 7, "projection"), _PROJECTION)
    return (_INPUT, _OF_INPUT, _OF_STATE, *biases, _STATE, _CELL, *projection)


def _gru(op: Op, types: Types) -> FactorRule:
    """x, of_input, of_state, input_bias?, state_bias?, hidden, reverse -> states, gates, candidates."""
    biases = (*_if(is_ref(op, 3, "input_bias"), _BIAS), *_if(is_ref(op, 4, "state_bias"), _BIAS))
    return FactorRule(operands=(_INPUT, _OF_INPUT, _OF_STATE, *biases, _STATE), results=(_STATES, _GATES, _STATES), whole=_WHOLE)


def _gru_backward(op: Op, types: Types) -> FactorRule:
    """gradient, x, of_input, of_state, hidden, states, gates, candidates, reverse, wants_input."""
    return FactorRule(
        operands=(_STATES, _INPUT, _OF_INPUT, _OF_STATE, _STATE, _STATES, _GATES, _STATES),
        results=(_of_input(op, 9), _OF_INPUT, _OF_STATE, _BIAS, _BIAS, _STATE),
        whole=_WHOLE,
        linear=(frozenset({0}),),
    )


def _rnn(op: Op, types: Types) -> FactorRule:
    """x, of_input, of_state, bias?, hidden, relu, reverse -> states."""
    bias = _if(is_ref(op, 3, "bias"), _BIAS)
    return FactorRule(operands=(_INPUT, _OF_INPUT, _OF_STATE, *bias, _STATE), results=(_STATES,), whole=_WHOLE)


def _rnn_backward(op: Op, types: Types) -> FactorRule:
    """gradient, x, of_input, of_state, hidden, states, relu, reverse, wants_input."""
    return FactorRule(
        operands=(_STATES, _INPUT, _OF_INPUT, _OF_STATE, _STATE, _STATES),
        results=(_of_input(op, 8), _OF_INPUT, _OF_STATE, _BIAS, _STATE),
        whole=_WHOLE,
        linear=(frozenset({0}),),
    )


def _ctc_loss(op: Op, types: Types) -> FactorRule:
    """log_probs, targets, input_lengths, target_lengths, blank, zero_infinity -> losses, forward variables."""
    return FactorRule(operands=_CTC_OPERANDS, results=(_LOSSES, _ALPHA), whole=_WHOLE)


def _ctc_loss_backward(op: Op, types: Types) -> FactorRule:
    """gradient, the operands of ctc_loss and its results, blank, zero_infinity."""
    operands = (_LOSSES, *_CTC_OPERANDS, _LOSSES, _ALPHA)
    return FactorRule(operands=operands, results=(_CTC_OPERANDS[0],), whole=_WHOLE, linear=(frozenset({0}),))


def _sequence_lengths(op: Op, types: Types) -> FactorRule:
    """lengths, steps, enforce_sorted -> the same lengths."""
    return FactorRule(operands=(("n",),), results=(("n",),))


def _ctc_flop(op: Op, types: Types) -> int:
    """Seven per forward variable (three exponentials, as many sums, a logarithm); the backward pass has as many backward variables."""
    log_probs, targets = (shape_of(op, types, at + op.target.endswith("_backward")) for at in (0, 1))
    return 7 * log_probs[0] * log_probs[1] * (2 * targets[1] + 1)


def _of_input(op: Op, at: int) -> Factors:
    """Factors of the gradient of x, which is empty unless the argument at ``at`` asks for it."""
    return _INPUT if integer(op, at, "wants_input", 1) else _NOTHING


def _forward_flop(op: Op, types: Types) -> int:
    return _flop(op, types, products=1)


def _backward_flop(op: Op, types: Types) -> int:
    """Two products with each weight: for its gradient and for that of what it is multiplied with; lstm's forward pass is a third if it kept nothing."""
    again = op.target == "regista.lstm_backward" and not is_ref(op, 2, "kept")
    return _flop(op, types, products=3 if again else 2)


def _flop(op: Op, types: Types, *, products: int) -> int:
    """Per sequence and step 2 for each weight and product, and five per gate."""
    rule = _RULES[op.target](op, types)
    sizes = {dims: types[value].numel for value, dims in zip(op.inputs, rule.operands, strict=True)}
    weights = sum(sizes.get(dims, 0) for dims in (_OF_INPUT, _OF_STATE, _PROJECTION))
    steps, batch, _ = shape_of(op, types, 0)
    gates = types[op.inputs[rule.operands.index(_OF_STATE)]].shape[0]
    return steps * batch * (2 * products * weights + 5 * gates)


_RULES = {
    "regista.lstm": _lstm,
    "regista.lstm_backward": _lstm_backward,
    "regista.gru": _gru,
    "regista.gru_backward": _gru_backward,
    "regista.rnn": _rnn,
    "regista.rnn_backward": _rnn_backward,
}

TABLE: dict[str, OpSpec] = {
    target: OpSpec(rule=rule, flop=_backward_flop if target.endswith("_backward") else _forward_flop) for target, rule in _RULES.items()
}
TABLE |= {
    "regista.sequence_lengths": OpSpec(rule=_sequence_lengths, flop=no_flop),
    "regista.ctc_loss": OpSpec(rule=_ctc_loss, flop=_ctc_flop),
    "regista.ctc_loss_backward": OpSpec(rule=_ctc_loss_backward, flop=_ctc_flop),
}
