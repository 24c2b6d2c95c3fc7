"""Attention (planner.frontend.attention): samples, heads and rows of queries are independent; keys and values of a head are whole.

Factors: n samples, h heads, s queries; t keys, e and d widths of a head are whole.  Where fewer heads of keys are shared, they are cut with the
queries' heads, which stand together by group; a single one is shared by all parts.

    attention   (n h s e)(n h t e)(n h t d)[(n h s t)]  ->  n h s d,  n h s                  backward   (n h s d)..  ->  n h s e,  n h t e,  n h t d
    a cut of s: the gradients of keys and values P.   Linear in the values; backward in the gradient that comes in.

Causal attention has two literals more, the shape of its first result as a whole and its cuts, from which a part of the rows knows its place.
"""

from __future__ import annotations

from planner.ir.graph import Op
from planner.opset.elementwise import broadcast_factors
from planner.opset.layers.blocks import BLOCK, BLOCK_BACKWARD
from planner.opset.layers.heads import OUT, ROW, backward_flop, forward_flop, operand_factors
from planner.opset.rule import FactorRule, Factors, Types
from planner.opset.spec import OpSpec, integer, is_ref, shape_of

__all__ = ["TABLE", "has_place"]

_WHOLE = frozenset("ted")


def _operands(op: Op, types: Types, first: int) -> tuple[Factors, ...]:
    """Factors of q, k, v and a mask, of which q is the operand ``first``."""
    operands = operand_factors(op, types, first, "t")
    if not is_ref(op, first + 3, "mask"):
        return operands
    scores = (*shape_of(op, types, first)[:3], shape_of(op, types, first + 1)[2])
    return (*operands, broadcast_factors(shape_of(op, types, first + 3), scores, ("n", "h", "s", "t")))


def has_place(op: Op) -> bool:
    """Whether the values of attention depend on where its rows stand, as of causal attention and of its steps: its last two literals say it."""
    return op.target in (BLOCK, BLOCK_BACKWARD) or (op.target in (_FORWARD, _BACKWARD) and _is_causal(op))


def _cuts(op: Op) -> int | None:
    return len(op.args) - 1 if _is_causal(op) else None


def _whole(op: Op) -> frozenset[str]:
    """Cuts are those of the first result: where nobody reads it, the rows are whole."""
    return _WHOLE | {"s"} if _is_causal(op) and op.outputs[0] is None else _WHOLE


def _attention(op: Op, types: Types) -> FactorRule:
    """q, k, v, mask?, is_causal, scale, (whole, cuts) -> out, logsumexp, which does not depend on v."""
    operands = _operands(op, types, 0)
    everything = frozenset(range(len(operands)))
    return FactorRule(
        operands=operands,
        results=(OUT, ROW),
        whole=_whole(op),
        cuts=_cuts(op),
        linear=(frozenset({2}),),
        depends=(everything, everything - {2}),
    )


def _attention_backward(op: Op, types: Types) -> FactorRule:
    """gradient, q, k, v, mask?, out, logsumexp, is_causal, scale, (whole, cuts) -> gradients of q, k, v."""
    operands = _operands(op, types, 1)
    return FactorRule(
        operands=(OUT, *operands, OUT, ROW),
        results=operands[:3],
        whole=_whole(op),
        cuts=_cuts(op),
        linear=(frozenset({0}),),
    )


def _is_causal(op: Op) -> bool:
    return bool(integer(op, 7 if op.target == _BACKWARD else 4, "is_causal", 0))


def _pairs(op: Op, types: Types, first: int) -> int:
    """Pairs of a query and a key of which a score is computed: causal, those that are seen, by the last part of the rows where they are cut.

    first: operand that is q.
    """
    samples, heads, rows, _ = shape_of(op, types, first)
    keys = shape_of(op, types, first + 1)[2]
    if not _is_causal(op):
        return samples * heads * rows * keys
    whole = op.args[-2]
    assert isinstance(whole, tuple) and isinstance(whole[2], int)
    return samples * heads * (_seen(whole[2], keys) - _seen(whole[2] - rows, keys))


def _seen(rows: int, keys: int) -> int:
    """Pairs of the first rows: row i sees i + 1 keys, or all."""
    square = min(rows, keys)
    return square * (square + 1) // 2 + (rows - square) * keys


def _flop(op: Op, types: Types) -> int:
    return forward_flop(op, types, _pairs(op, types, 0))


def _backward_flop(op: Op, types: Types) -> int:
    return backward_flop(op, types, _pairs(op, types, 1))


_FORWARD, _BACKWARD = "regista.attention", "regista.attention_backward"

# traffic: each operand and result once, since scores and weights are in no memory
TABLE: dict[str, OpSpec] = {
    _FORWARD: OpSpec(rule=_attention, flop=_flop),
    _BACKWARD: OpSpec(rule=_attention_backward, flop=_backward_flop),
}
