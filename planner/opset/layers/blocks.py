"""Attention in steps, each of one block of keys per block of queries (planner.frontend.attention.blocks): what a ring of devices performs.

Factors as in attention; s stands for the rows of queries and of keys alike, which are cut together into as many parts as there are blocks.
In step t the queries at coordinate i of the axis need the keys of coordinate i - t, so keys and values lie S(2)+t, and so do their gradients:

    block       (n h s e)(n h s+t e)(n h s+t d)[(n h s d)(n h s)]         ->  n h s d,  n h s
    backward    (n h s d)(n h s e)(n h s+t e)(n h s+t d)(n h s d)(n h s)[(n h s e)]  ->  n h s e,  n h s+t e,  n h s+t d
    sums        (n h s+t e)(n h s+t e)(n h s+t d)(n h s+t d)              ->  n h s+t e,  n h s+t d
    keys        (n g s e)(n g s d)(n h s d), the gradient, unread         ->  n g s e,  n g s d         what they are, once more

Literals: is_causal, scale, t, blocks, rows of a block, the shape of the first result as a whole, its cuts.
"""

from __future__ import annotations

from planner.ir.graph import Op
from planner.opset.layers.heads import OUT, ROW, backward_flop, forward_flop, operand_factors, shared_heads
from planner.opset.rule import FactorRule, Factors, Turned, Types
from planner.opset.spec import OpSpec, elementwise_flop, no_flop, shape_of

__all__ = ["BLOCK", "BLOCK_BACKWARD", "BLOCK_KEYS", "BLOCK_SUMS", "TABLE", "block_is_causal"]

BLOCK, BLOCK_BACKWARD = "regista.attention_block", "regista.attention_block_backward"
BLOCK_SUMS, BLOCK_KEYS = "regista.attention_block_sums", "regista.attention_block_keys"


def _step(op: Op) -> tuple[bool, int, int, int]:
    """(is_causal, t, blocks, rows of a block)."""
    causal, _, turn, parts, extent, _, _ = op.args[-7:]
    assert isinstance(turn, int) and isinstance(parts, int) and isinstance(extent, int)
    return bool(causal), turn, parts, extent


def block_is_causal(op: Op) -> bool:
    """Whether the step's blocks stand on the diagonal, so that a row sees the keys up to its own."""
    causal, turn, _, _ = _step(op)
    return causal and turn == 0


def _whole(op: Op, types: Types, first: int) -> frozenset[str]:
    """Rows are cut once."""
    _, _, parts, extent = _step(op)
    return frozenset("ed") if shape_of(op, types, first)[2] == parts * extent else frozenset("eds")


def _block(op: Op, types: Types) -> FactorRule:
    _, turn, parts, _ = _step(op)
    before: tuple[Factors, ...] = (OUT, ROW)[: len(op.inputs) - 3]
    return FactorRule(
        operands=(*operand_factors(op, types, 0, "s"), *before),
        results=(OUT, ROW),
        whole=_whole(op, types, 0),
        cuts=len(op.args) - 1,
        turned=Turned(factor="s", parts=parts, turn=turn, operands=frozenset({1, 2}), results=frozenset()),
    )


def _block_backward(op: Op, types: Types) -> FactorRule:
    _, turn, parts, _ = _step(op)
    operands = operand_factors(op, types, 1, "s")
    before: tuple[Factors, ...] = (operands[0],)[: len(op.inputs) - 6]
    return FactorRule(
        operands=(OUT, *operands, OUT, ROW, *before),
        results=operands,
        whole=_whole(op, types, 1),
        cuts=len(op.args) - 1,
        turned=Turned(factor="s", parts=parts, turn=turn, operands=frozenset({2, 3}), results=frozenset({1, 2})),
    )


def _block_sums(op: Op, types: Types) -> FactorRule:
    turn, parts = op.args[-2:]
    assert isinstance(turn, int) and isinstance(parts, int)
    keys, values = ("n", "h", "s", "e"), ("n", "h", "s", "d")
    return FactorRule(
        operands=(keys, keys, values, values),
        results=(keys, values),
        whole=frozenset("ed"),
        turned=Turned(factor="s", parts=parts, turn=turn, operands=frozenset(range(4)), results=frozenset({0, 1})),
    )


def _block_keys(op: Op, types: Types) -> FactorRule:
    shared = shared_heads(shape_of(op, types, 2)[1], shape_of(op, types, 0)[1])
    keys, values = ("n", shared, "s", "e"), ("n", shared, "s", "d")
    return FactorRule(
        operands=(keys, values, OUT),
        results=(keys, values),
        whole=frozenset("ed"),
        depends=(frozenset({0}), frozenset({1})),
    )


def _pairs(op: Op, types: Types, first: int) -> int:
    """Scores computed, by the last part of the rows where they are cut: it sees a block in every step."""
    causal, turn, parts, extent = _step(op)
    samples, heads, rows, _ = shape_of(op, types, first)
    blocks = rows // extent
    if not causal:
        seen = blocks * extent * extent
    elif turn == 0:
        seen = blocks * extent * (extent + 1) // 2
    else:
        seen = (1 if blocks == 1 else parts - turn) * extent * extent
    return samples * heads * seen


def _flop(op: Op, types: Types) -> int:
    return forward_flop(op, types, _pairs(op, types, 0))


def _backward_flop(op: Op, types: Types) -> int:
    return backward_flop(op, types, _pairs(op, types, 1))


TABLE: dict[str, OpSpec] = {
    BLOCK: OpSpec(rule=_block, flop=_flop),
    BLOCK_BACKWARD: OpSpec(rule=_block_backward, flop=_backward_flop),
    BLOCK_SUMS: OpSpec(rule=_block_sums, flop=elementwise_flop),
    BLOCK_KEYS: OpSpec(rule=_block_keys, flop=no_flop),
}
