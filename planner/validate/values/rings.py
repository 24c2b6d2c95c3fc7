"""Attention in steps of blocks computes what attention of the program does: the laws by which values of steps have numbers.

    step 0, 1, ... R - 1 of one attention, each on the results of the one before     the last step's results are the attention's
    of its gradient likewise; and the sums of dK of the steps 0, 1, ... R - 1        the last sum is the gradient's dK, as of dV
    keys and values once more                                                        what they are

[Liu et al. 2023, ring attention: every query sees every block of keys once, and (O, l) of disjoint keys merge.]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from planner.ir.graph import Arg, Op
from planner.ir.tensor import DType, TensorType
from planner.opset.layers import BLOCK, BLOCK_BACKWARD, BLOCK_KEYS, BLOCK_SUMS
from planner.validate.values.literals import Key

__all__ = ["AttentionSteps", "Step"]

Step = tuple[Op, tuple[TensorType | None, ...], tuple[int, ...]]
"""The op on the whole tensors, the types of its results, their numbers."""
_Attention = tuple[Op, tuple[int, ...], tuple[TensorType | None, ...]]
"""An op of the program, and the numbers and types of its results."""


class AttentionSteps:
    """The numbers of steps of the program's attentions.

    Args:
        number: key and type -> number.   type_of: number -> type.   program_ops: (target, numbers of operands) -> ops of the program.
    """

    def __init__(
        self,
        number: Callable[[Key, TensorType | None], int],
        type_of: Callable[[int], TensorType],
        program_ops: Callable[[str, tuple[int, ...]], Iterable[_Attention]],
    ) -> None:
        self._number, self._type_of, self._program_ops = number, type_of, program_ops
        self._sums: dict[tuple[int, ...], tuple[int, int]] = {}

    def steps(self, op: Op, operands: tuple[int, ...]) -> list[Step]:
        """What the op may be on these values."""
        if op.kwargs:
            return []
        if op.target == BLOCK and len(op.args) == 12 and len(operands) in (3, 5):
            return list(self._blocks(op, operands))
        if op.target == BLOCK_BACKWARD and len(op.args) == 14 and len(operands) in (6, 7):
            return list(self._backward_blocks(op, operands))
        if op.target == BLOCK_SUMS and len(op.args) == 6 and len(operands) == 4:
            return list(self._added(op, operands))
        if op.target == BLOCK_KEYS and len(op.args) == len(operands) == 3:
            return [(op, tuple(map(self._type_of, operands[:2])), operands[:2])]
        return []

    def _blocks(self, op: Op, operands: tuple[int, ...]) -> Iterable[Step]:
        q, k, v = operands[:3]
        for attention, results, types in self._program_ops("regista.attention", (q, k, v)):
            turn, parts = self._literals(op, q, k, v, attention.args[4:6])
            shape, wide = (*self._type_of(q).shape[:3], self._type_of(v).shape[3]), self._wide(q)
            merged = TensorType(shape, wide), TensorType(shape[:3], wide)
            before = () if turn == 0 else self._made("merged", results, parts, turn - 1, merged)
            if parts == 0 or operands[3:] != before:
                continue
            if turn == parts - 1:
                yield _uncut(op), types[:2], results[:2]
            else:
                yield _uncut(op), merged, self._made("merged", results, parts, turn, merged)

    def _backward_blocks(self, op: Op, operands: tuple[int, ...]) -> Iterable[Step]:
        _, q, k, v = operands[:4]
        for attention, results, types in self._program_ops("regista.attention_backward", operands[:6]):
            turn, parts = self._literals(op, q, k, v, attention.args[7:9])
            summed = (TensorType(self._type_of(q).shape, self._wide(q)),)
            before = () if turn == 0 else self._made("dq", results, parts, turn - 1, summed)
            if parts == 0 or None in types or operands[6:] != before:
                continue
            last = turn == parts - 1
            shares = self._made("sums" if turn == 0 else "shares", results, parts, turn, types[1:])  # those of step 0 are its sums
            if turn:
                sums = self._made("sums", results, parts, turn - 1, types[1:])
                after = results[1:] if last else self._made("sums", results, parts, turn, types[1:])
                self._sums[sums[0], shares[0], sums[1], shares[1], turn, parts] = after[0], after[1]
            own = results[:1] if last else self._made("dq", results, parts, turn, summed)
            yield _uncut(op), ((types[0],) if last else summed) + types[1:], (*own, *shares)

    def _added(self, op: Op, operands: tuple[int, ...]) -> Iterable[Step]:
        turn, parts = op.args[4:]
        if isinstance(turn, int) and isinstance(parts, int) and (after := self._sums.get((*operands, turn, parts))) is not None:
            yield op, tuple(map(self._type_of, (operands[0], operands[2]))), after

    def _literals(self, op: Op, q: int, k: int, v: int, asked: tuple[Arg, ...]) -> tuple[int, int]:
        """(t, R) of a step of the attention with these literals; (0, 0): the op is none."""
        causal, scale, turn, parts, extent, whole, _ = op.args[-7:]
        queries, keys, values = (self._type_of(number).shape for number in (q, k, v))
        like = type(causal) is type(asked[0]) and type(scale) is type(asked[1]) and (causal, scale) == asked
        first = (*queries[:3], values[3]) if op.target == BLOCK else queries
        if not (like and isinstance(turn, int) and isinstance(parts, int) and isinstance(extent, int) and whole == first):
            return 0, 0
        fits = parts >= 2 and 0 <= turn < parts and extent * parts == queries[2] == keys[2] == values[2]
        before = len(op.inputs) - (3 if op.target == BLOCK else 6)
        absent = all(arg is None for arg in (op.args[3:5] if op.target == BLOCK else op.args[6:7]))
        return (turn, parts) if fits and (before > 0) == (turn > 0) and absent == (turn == 0) else (0, 0)

    def _made(self, what: str, attention: tuple[int, ...], parts: int, turn: int, types: tuple[TensorType | None, ...]) -> tuple[int, ...]:
        """The numbers of what a step of an attention makes."""
        return tuple(self._number((what, attention, parts, turn, place), type_) for place, type_ in enumerate(types))

    def _wide(self, number: int) -> DType:
        return DType.FLOAT64 if self._type_of(number).dtype is DType.FLOAT64 else DType.FLOAT32


def _uncut(op: Op) -> Op:
    return replace(op, args=(*op.args[:-1], ()))
