"""The graph of a padded micro-batch whose sums over samples leave out the samples that were added.

Which dim of a value holds the samples follows from the algebra of layouts: cut into as many parts as there are samples, S(d) holds one sample in
each part, and an op that makes P(sum) of it adds samples up.  In front of such an op its operand is multiplied by the weights:

    forward     x: S(0) --sum--> P(sum)            x: S(0) --* weights--> S(0) --sum--> mixed
    backward    the gradient of the loss, spread over samples, is multiplied by the weights once: what is linear in it stays 0 there

With one micro-batch such a sum is exact, whatever is computed with it (batch norm).  With several it may only be added up further: an op
that is not linear in it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.frontend.tracing.checks.op import CHECK
from planner.ir.errors import Unsupported
from planner.ir.graph import ACCUMULATE, Dt, GraphInput, InputKind, LogicalGraph, Op, Ref, Role
from planner.ir.sbp import Broadcast, Partial, ReduceOp, Split
from planner.ir.tensor import DType, TensorType
from planner.opset import FactorRule, Signature, factor_rule, signatures

__all__ = ["weighted"]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples lie along ``dim``, ``samples`` of them; ``zero``: those added are zero."""

    dim: int
    samples: int
    zero: bool = False


@dataclass(frozen=True, slots=True)
class _Mixed:
    """A sum over the samples of one of several micro-batches."""


_Samples = _Rows | _Mixed | None


def weighted(graph: LogicalGraph, *, name: str, size: int, micro_batches: int) -> LogicalGraph:
    """The graph with one batch input more, the weights, float32 [samples of a micro-batch].

    Args:
        name: of the new input.   size: samples of the whole batch, with those added.

    Raises:
        Unsupported: an op lets samples meet in a way that padding would change.
    """
    return _Weighing(graph, name, size, micro_batches).run()


class _Weighing:
    def __init__(self, graph: LogicalGraph, name: str, size: int, micro_batches: int) -> None:
        self._graph, self._name, self._size, self._micro_batches = graph, name, size, micro_batches
        self._types = dict(graph.values)
        self._ops: list[Op] = []
        self._samples: dict[str, _Samples] = {}
        self._gradients: set[str] = set()
        self._renamed: dict[str, str] = {}
        self._shaped: dict[tuple[int, int, int, DType], str] = {}
        self._inputs = {self._part: self._input(name, self._part, None)}
        if any(i.whole_of is not None for i in graph.inputs):
            self._inputs[size] = self._input(f"{name}.whole", size, name)
        for given in graph.inputs:
            if given.batch_dim is not None:
                self._samples[given.value] = _Rows(given.batch_dim, self._part)
            elif given.whole_of is not None:
                dim = next(i.batch_dim for i in graph.inputs if i.name == given.whole_of)
                self._samples[given.value] = None if dim is None else _Rows(dim, size)
            elif given.kind is InputKind.LOSS_SCALE:
                self._gradients.add(given.value)

    @property
    def _part(self) -> int:
        return self._size // self._micro_batches

    def _input(self, name: str, samples: int, whole_of: str | None) -> GraphInput:
        value = f"{InputKind.BATCH.value}:{name}"
        self._types[value] = TensorType((samples,), DType.FLOAT32)
        return GraphInput(value=value, kind=InputKind.BATCH, name=name, batch_dim=None if whole_of else 0, whole_of=whole_of)

    def run(self) -> LogicalGraph:
        graph = self._graph
        for op in graph.ops:
            if op.role in (Role.FORWARD, Role.BACKWARD):
                self._visit(op)
            else:
                self._ops.append(op.renamed(self._renamed))
        for state, value in graph.updates.items():
            if self._samples.get(value) is not None:
                raise Unsupported(f"{state} takes a value from the samples of each micro-batch; {self._way_out}")
        for op in graph.ops:
            if op.target == ACCUMULATE and isinstance(self._samples.get(op.inputs[0]), _Rows):
                raise Unsupported(f"{op.inputs[0]} has a part per sample, and is no sum over samples; {self._way_out}")
        last = max(place for place, given in enumerate(graph.inputs) if given.kind is InputKind.BATCH and given.whole_of is None) + 1
        inputs = (*graph.inputs[:last], self._inputs[self._part], *graph.inputs[last:])
        if self._micro_batches > 1 and self._size in self._inputs:
            inputs = (*inputs, self._inputs[self._size])
        weighed = replace(
            graph,
            values=self._types,
            inputs=inputs,
            ops=_numbered(self._ops),
            updates={state: self._renamed.get(value, value) for state, value in graph.updates.items()},
        )
        weighed.verify()
        return weighed

    @property
    def _way_out(self) -> str:
        wanted = "micro-batches and devices that divide" if self._micro_batches == 1 else "a number of micro-batches that divides"
        return f"the batch does not divide and is padded, which would change it: choose {wanted} the batch"

    def _visit(self, op: Op) -> None:
        rule = factor_rule(op, self._types)
        if self._gives_gradients(op, rule):
            self._gradients.update(out for out in op.outputs if out is not None)
        held = [None if place in rule.unread else self._samples.get(value) for place, value in enumerate(op.inputs)]
        rows = {place: entry for place, entry in enumerate(held) if isinstance(entry, _Rows)}
        mixed = {place for place, entry in enumerate(held) if isinstance(entry, _Mixed)}
        if not rows and not mixed:
            self._ops.append(op.renamed(self._renamed))
        elif rows and mixed:
            raise Unsupported(f"{op.where()} computes samples from a sum over their micro-batch; {self._way_out}")
        elif mixed:
            if not any(mixed <= group for group in rule.linear):
                raise Unsupported(f"{op.where()} is not linear in a sum over the samples of a micro-batch; {self._way_out}")
            self._ops.append(op.renamed(self._renamed))
            self._samples.update({out: _Mixed() for out in op.outputs if out is not None})
        else:
            self._visit_rows(op, rule, rows)

    def _gives_gradients(self, op: Op, rule: FactorRule) -> bool:
        """Whether the op makes the gradient of the loss by itself, or computes with it."""
        if op.role is not Role.BACKWARD or op.again:
            return False
        return len(rule.unread) == len(op.inputs) or any(value in self._gradients for value in op.inputs)

    def _visit_rows(self, op: Op, rule: FactorRule, rows: dict[int, _Rows]) -> None:
        samples = next(iter(rows.values())).samples
        signature = self._signature(op, rows, samples)
        if signature is None or any(isinstance(o, Partial) and o.op is not ReduceOp.SUM for o in signature.outputs):
            raise Unsupported(f"{op.where()} may compute a sample's values from those of others; {self._way_out}")
        zero = [self._stays_zero(rule, rows, result) for result in range(len(op.outputs))]
        sums = {r for r, lies in enumerate(signature.outputs) if isinstance(lies, Partial) and not zero[r]}
        names = dict(self._renamed)
        if op.target == CHECK:
            names[op.inputs[0]] = self._of_own_samples(op, rows[0])
        elif sums:
            names |= {op.inputs[k]: self._weighed(op, op.inputs[k], rows[k]) for k in self._to_weigh(op, rule, rows, sums)}
        self._ops.append(op.renamed(names))
        for out, lies, stays_zero in zip(op.outputs, signature.outputs, zero, strict=True):
            if out is None:
                continue
            if isinstance(lies, Split):
                self._samples[out] = _Rows(lies.dim, samples, stays_zero)
                spread = out in self._gradients and not any(op.inputs[k] in self._gradients for k in rows)
                if spread and not stays_zero and self._types[out].dtype.is_floating:
                    self._renamed[out] = self._weighed(op, out, _Rows(lies.dim, samples))
                    self._samples[out] = _Rows(lies.dim, samples, True)
            elif isinstance(lies, Partial) and self._micro_batches > 1 and samples == self._part:
                self._samples[out] = _Mixed()

    def _stays_zero(self, rule: FactorRule, rows: dict[int, _Rows], result: int) -> bool:
        """Whether a result is zero, or adds zeros, for samples that were added: it is linear in operands that are."""
        return any(group & rule.depends_on(result) and all(k in rows and rows[k].zero for k in group) for group in rule.linear)

    def _signature(self, op: Op, rows: dict[int, _Rows], samples: int) -> Signature | None:
        if any(entry.samples != samples for entry in rows.values()):
            return None
        for signature in signatures(op, self._types, samples):
            wanted = all(
                lies == Split(rows[k].dim) if k in rows else isinstance(lies, Split | Broadcast) for k, lies in enumerate(signature.inputs)
            )
            if wanted:
                return signature
        return None

    def _to_weigh(self, op: Op, rule: FactorRule, rows: dict[int, _Rows], sums: set[int]) -> frozenset[int]:
        """Operands in which all these results are linear."""
        groups = [g for g in rule.linear if g and g <= rows.keys() and all(g & rule.depends_on(result) for result in sums)]
        if not groups:
            raise Unsupported(f"{op.where()} adds up samples and is linear in none of its operands; {self._way_out}")
        return min(groups, key=lambda group: (len(group), -max(group)))

    def _weighed(self, op: Op, value: str, rows: _Rows) -> str:
        """weights x value, made for ``op``."""
        type_ = self._types[value]
        weights = self._weights(op, type_, rows)
        name = self._renamed.get(value, value)
        return self._emit(op, "aten.mul.Tensor", (Ref(name), Ref(weights)), type_)

    def _of_own_samples(self, op: Op, rows: _Rows) -> str:
        """The mask of a check, in which the samples that were added are what the check wants."""
        mask, wanted = op.inputs[0], op.args[1]
        type_ = self._types[mask]
        weights = self._weights(op, replace(type_, dtype=DType.FLOAT32), rows)
        asked = TensorType(self._types[weights].shape, DType.BOOL)
        compared, joined = ("eq", "or") if wanted else ("ne", "and")
        told = self._emit(op, f"aten.{compared}.Scalar", (Ref(weights), 0), asked)
        return self._emit(op, f"aten.logical_{joined}.default", (Ref(self._renamed.get(mask, mask)), Ref(told)), type_)

    def _weights(self, op: Op, type_: TensorType, rows: _Rows) -> str:
        """The weights, repeated within a sample, along the dim of the samples, to be spread over the dims behind it."""
        extent, behind = type_.shape[rows.dim], type_.ndim - rows.dim - 1
        key = (rows.samples, extent, behind, type_.dtype)
        if key not in self._shaped:
            made = self._inputs[rows.samples].value
            if type_.dtype is not DType.FLOAT32:
                cast = (("dtype", Dt(type_.dtype)),)
                made = self._emit(op, "aten._to_copy.default", (Ref(made),), TensorType((rows.samples,), type_.dtype), cast)
            each = extent // rows.samples
            if each > 1:
                made = self._view(op, made, (rows.samples, 1), type_.dtype)
                spread = TensorType((rows.samples, each), type_.dtype)
                ones = self._emit(op, "aten.full.default", (spread.shape, 1), spread, (("dtype", Dt(type_.dtype)),))
                made = self._emit(op, "aten.mul.Tensor", (Ref(ones), Ref(made)), spread)
            if each > 1 or behind:
                made = self._view(op, made, (extent, *(1,) * behind), type_.dtype)
            self._shaped[key] = made
        return self._shaped[key]

    def _view(self, op: Op, value: str, shape: Sequence[int], dtype: DType) -> str:
        return self._emit(op, "aten.view.default", (Ref(value), tuple(shape)), TensorType(tuple(shape), dtype))

    def _emit(self, op: Op, target: str, args: tuple, type_: TensorType, kwargs: tuple = ()) -> str:  # type: ignore[type-arg]
        made = f"weighted.{len(self._types)}"
        self._types[made] = type_
        self._ops.append(
            Op(id=made, target=target, args=args, kwargs=kwargs, outputs=(made,), role=op.role, module=op.module, forward_of=op.forward_of)
        )
        return made


def _numbered(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Ids in order, as other graphs have them."""
    number = {op.id: f"n{place}" for place, op in enumerate(ops)}
    return tuple(replace(op, id=number[op.id], forward_of=number[op.forward_of] if op.forward_of else None) for op in ops)
