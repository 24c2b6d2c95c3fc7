"""Value numbering: two values have one number if the program computes them alike, whatever they are called and however often they are computed.

    x = relu(a)      y = relu(a)              one number: copies and recomputed values need no names
    dropout(x, draw 3)                        the draw is part of the number (SEMANTICS 7)

Three laws of sums are built in, since the Plan of a pipeline uses them:

    a + b = b + a                                   tensors of one type                                             -> _plain_sum()
    acc(a + b) = acc(a) + acc(b)                    the mean over micro-batches is linear                           -> _accumulated()
    join(a, b, c) = join(join(a, b), c)             sums and maxima of 0-d measures, in any order                   -> _joined()

Attention in steps, of a block of keys each, is another two (planner.validate.values.rings).

A number stands for a value of one micro-batch (of the same one in a whole act), of the step, or of the state as a step finds it.  A *pending*
number is what accumulates to a value: all acts of a step must fill one block with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from planner.ir.graph import ACCUMULATE, LogicalGraph, Op, Ref
from planner.ir.tensor import TensorType
from planner.opset.optimizer import JOINS
from planner.validate.values.literals import Key, arguments_key
from planner.validate.values.rings import AttentionSteps

__all__ = ["OpForm", "ProgramOp", "ValueNumbers"]

_ADD = "aten.add.Tensor"


@dataclass(frozen=True, eq=False)  # one per form, compared by identity
class OpForm:
    """An op without names.  op: one of those that have the form.  inputs, outputs: types per operand and per result (None: nobody reads it)."""

    op: Op
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType | None, ...]


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """An op on given values.  results: the number of each output."""

    form: OpForm
    results: tuple[int, ...]


class ValueNumbers:
    """The numbers of all values of a graph.

    of: value -> number.   names: number -> the first value that has it.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self.of: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self._types: dict[int, TensorType] = {}
        self._numbers: dict[Key, int] = {}
        self._forms: dict[Key, OpForm] = {}
        self._program_ops: dict[Key, dict[Key, ProgramOp]] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._settled: dict[int, int] = {}
        self._terms: dict[int, tuple[str, Counter[int]]] = {}
        self._steps = AttentionSteps(self._number, self.type_of, self._attentions)
        for given in graph.inputs:
            self._note(given.value, self._number(("input", given.kind, given.name), graph.values[given.value]))
        for op in graph.ops:
            for value, number in zip(op.outputs, self._read(op, graph), strict=True):
                if value is not None:
                    self._note(value, number)

    def type_of(self, number: int) -> TensorType:
        return self._types[number]

    def ops_on(self, op: Op, operands: tuple[int, ...]) -> list[ProgramOp]:
        """The ops of the program that ``op`` may be on these values, if its literals are right; of sums also those that the program does not have."""
        if (made := self._sum(op, operands)) is not None:
            return [made]
        if steps := self._steps.steps(op, operands):
            inputs = tuple(self._types[number] for number in operands)
            return [ProgramOp(self._form_of(whole, inputs, types), results) for whole, types, results in steps]
        return list(self._program_ops.get((op.target, op.draw, operands), {}).values())

    def settled(self, number: int) -> int | None:
        """The accumulated value for which a number is pending; None: it is not pending."""
        return self._settled.get(number)

    def shown(self, number: int) -> str:
        """How messages name a value."""
        if number in self._settled:
            return f"{self.shown(self._settled[number])} of a single micro-batch"
        return self.names.get(number, "a value that the program does not have")

    def _note(self, value: str, number: int) -> None:
        self.of[value] = number
        self.names.setdefault(number, value)

    def _number(self, key: Key, type_: TensorType | None) -> int:
        number = self._numbers.setdefault(key, len(self._numbers))
        if type_ is not None:
            self._types.setdefault(number, type_)
        return number

    def _read(self, op: Op, graph: LogicalGraph) -> tuple[int, ...]:
        """The numbers of an op's outputs; notes the op."""
        operands = tuple(self.of[value] for value in op.inputs)
        if (made := self._sum(op, operands)) is not None:
            return tuple(self._settled.get(number, number) for number in made.results)
        order = iter(operands)
        key = (op.target, op.draw, arguments_key(op, lambda _: next(order)))
        types = tuple(None if value is None else graph.values[value] for value in op.outputs)
        results = tuple(self._number((key, place), type_) for place, type_ in enumerate(types))
        form = self._form(op, operands, types)
        self._program_ops.setdefault((op.target, op.draw, operands), {}).setdefault((key, form), ProgramOp(form, results))
        return results

    def _form(self, op: Op, operands: tuple[int, ...], outputs: tuple[TensorType | None, ...]) -> OpForm:
        return self._form_of(op, tuple(self._types[number] for number in operands), outputs)

    def _form_of(self, op: Op, inputs: tuple[TensorType, ...], outputs: tuple[TensorType | None, ...]) -> OpForm:
        return self._forms.setdefault((op.target, arguments_key(op, lambda _: 0), inputs, outputs), OpForm(op, inputs, outputs))

    def _attentions(self, target: str, operands: tuple[int, ...]) -> Iterator[tuple[Op, tuple[int, ...], tuple[TensorType | None, ...]]]:
        for made in self._program_ops.get((target, None, operands), {}).values():
            yield made.form.op, made.results, made.form.outputs

    # The laws of sums.

    def _sum(self, op: Op, operands: tuple[int, ...]) -> ProgramOp | None:
        """The op by a law of sums; None: it is no such op."""
        if len(op.outputs) != 1 or not operands or op.kwargs or not all(isinstance(arg, Ref) for arg in op.args):
            return None
        types = [self._types[number] for number in operands]
        if op.target == ACCUMULATE and len(operands) == 1:
            type_, result = types[0], self._accumulated(operands[0])
        elif op.target == _ADD and len(operands) == 2 and types[0] == types[1]:
            type_, result = types[0], self._plain_sum(*operands)
        elif op.target in JOINS:
            type_ = max(types, key=lambda given: given.dtype.size_bytes)
            result = self._joined(op.target, operands, type_)
        else:
            return None
        return ProgramOp(self._form(op, operands, (type_,)), (result,))

    def _plain_sum(self, left: int, right: int) -> int:
        terms = [self._terms[number][1] for number in (left, right) if self._terms.get(number, ("",))[0] == ACCUMULATE]
        if len(terms) == 2:
            return self._combined(ACCUMULATE, terms[0] + terms[1], self._types[left])
        number = self._number((_ADD, min(left, right), max(left, right)), self._types[left])
        self._sums[number] = left, right
        return number

    def _accumulated(self, number: int) -> int:
        """What is pending for the sum of all terms, accumulated."""
        settled = self._combined(ACCUMULATE, self._addends(number), self._types[number])
        pending = self._number(("pending", settled), self._types[number])
        self._settled[pending] = settled
        return pending

    def _joined(self, target: str, operands: tuple[int, ...], type_: TensorType) -> int:
        joined: Counter[int] = Counter()
        for number in operands:
            law, terms = self._terms.get(number, ("", Counter()))
            joined += terms if law == target else Counter({number: 1})
        return self._combined(target, joined, type_)

    def _combined(self, law: str, terms: Counter[int], type_: TensorType) -> int:
        number = self._number((law, tuple(sorted(terms.items()))), type_)
        self._terms[number] = law, terms
        return number

    def _addends(self, number: int) -> Counter[int]:
        """The terms of a tree of plain sums, with their multiplicities."""
        terms: Counter[int] = Counter()
        open_sums = Counter({number: 1})
        while open_sums:
            # A sum has a larger number than its operands, so it is taken apart once, with all of its occurrences.
            largest = max(open_sums)
            times = open_sums.pop(largest)
            if largest in self._sums:
                for term in self._sums[largest]:
                    open_sums[term] += times
            else:
                terms[largest] += times
        return terms
