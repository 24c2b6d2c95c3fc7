"""Gradients of a parameter that several stages read: their terms are accumulated on the stages that compute them and added once per step.

    acc(a + b + c) = acc(a) + acc(b) + acc(c)                                       (1)  -> addends(), split_accumulations()

The left side sends a, b and c to one stage in every micro-batch; the right side sends three accumulated values in every step.  The gradient of a
weight that is tied n times is a sum of n terms, which autograd adds in pairs; (1) is applied to the whole tree of additions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.ir.graph import LogicalGraph, Op, Ref, Role
from planner.opset import is_view

__all__ = ["GradientSum", "addends", "split_accumulations", "widened_terms"]


@dataclass(frozen=True, slots=True)
class GradientSum:
    """A sum that is built by plain additions.  additions: from the last to the first.  terms: what they add, in order."""

    additions: tuple[Op, ...]
    terms: tuple[str, ...]


def addends(value: str, producers: Mapping[str, Op], consumers: Mapping[str, Sequence[Op]]) -> GradientSum:
    """The tree of additions that makes a value, and its terms.  A value that no plain addition makes, or that has other readers, is its only term."""
    made_by = producers.get(value)
    if (
        made_by is None
        or made_by.target != "aten.add.Tensor"
        or len(made_by.args) != 2
        or len(made_by.inputs) != 2
        or made_by.kwargs
        or len(consumers[value]) != 1
    ):
        return GradientSum((), (value,))
    left, right = (addends(part, producers, consumers) for part in made_by.inputs)
    return GradientSum((made_by, *left.additions, *right.additions), (*left.terms, *right.terms))


def widened_terms(graph: LogicalGraph) -> frozenset[str]:
    """Ids of the casts to a wider format of what is then accumulated, and of views in front: to reduce there is to reduce in the narrow format."""
    producers = graph.producers()
    casts = [op for op in graph.ops if op.target == _CAST and op.role is Role.BACKWARD and _widens(op, graph)]
    if not casts:
        return frozenset()
    consumers = graph.consumers()
    terms = {v for op in graph.ops if op.role is Role.ACCUMULATE for v in addends(op.inputs[0], producers, consumers).terms}
    narrow: set[str] = set()
    for op in casts:
        here: Op | None = op if op.outputs[0] in terms else None
        while here is not None:
            narrow.add(here.id)
            made_by = producers.get(here.inputs[0])
            here = made_by if made_by is not None and is_view(made_by) and len(consumers[here.inputs[0]]) == 1 else None
    return frozenset(narrow)


def _widens(op: Op, graph: LogicalGraph) -> bool:
    (value, *_), (made, *_) = op.inputs, op.outputs
    return made is not None and graph.values[value].dtype.size_bytes < graph.values[made].dtype.size_bytes


_CAST = "aten._to_copy.default"


def split_accumulations(graph: LogicalGraph, stage: Mapping[str, int], num_stages: int) -> tuple[LogicalGraph, dict[str, int]]:
    """Apply (1) to every accumulation whose terms several stages compute; returns the graph and the stage of every op.

    The terms of one stage are added before they are accumulated; the sums of the stages on one placement (stage mod num_stages) are added before
    they are sent.  If one stage computes all terms, it also adds them, whatever the stage of autograd's additions.
    """
    return _Splitting(graph, stage, num_stages).run()


class _Splitting:
    def __init__(self, graph: LogicalGraph, stage: Mapping[str, int], num_stages: int) -> None:
        self.graph, self.stage, self.num_stages = graph, dict(stage), num_stages
        self.producers, self.consumers = graph.producers(), graph.consumers()
        self.values = dict(graph.values)
        self.ops: list[Op] = []
        self.replaced: set[str] = set()  # additions that other ops replace

    def run(self) -> tuple[LogicalGraph, dict[str, int]]:
        for op in self.graph.ops:
            by_stage = self._terms_by_stage(op) if op.role is Role.ACCUMULATE else {}
            if len(by_stage) > 1:
                self._split(op, by_stage)
            else:
                self._move(op, *by_stage)
                self.ops.append(op)
        ops = tuple(op for op in self.ops if op.id not in self.replaced)
        used = {v for op in ops for v in (*op.inputs, *op.outputs) if v} | {i.value for i in self.graph.inputs}
        return replace(self.graph, ops=ops, values={v: t for v, t in self.values.items() if v in used}), self.stage

    def _terms_by_stage(self, op: Op) -> dict[int, list[str]]:
        """Stage -> the terms of an accumulated sum that it computes; empty if a term is not the result of an op."""
        by_stage: dict[int, list[str]] = {}
        for value in addends(op.inputs[0], self.producers, self.consumers).terms:
            if value not in self.producers:
                return {}
            by_stage.setdefault(self.stage[self.producers[value].id], []).append(value)
        return by_stage

    def _move(self, op: Op, where: int | None = None) -> None:
        """Move the additions and the accumulation to the stage that computes all terms."""
        additions = addends(op.inputs[0], self.producers, self.consumers).additions if where is not None else ()
        if where is not None and additions:
            self.stage.update({moved.id: where for moved in (*additions, op)})

    def _split(self, op: Op, by_stage: Mapping[int, Sequence[str]]) -> None:
        additions = addends(op.inputs[0], self.producers, self.consumers).additions
        self.replaced.update(addition.id for addition in additions)
        (result,) = op.outputs
        assert result is not None
        result_stage = next((self.stage[reader.id] for reader in self.consumers[result]), self.stage[additions[0].id])
        by_placement: dict[int, list[tuple[str, int]]] = {}  # placement -> (accumulated value, its stage)
        for number, (where, terms) in enumerate(by_stage.items()):
            part = self._accumulated(op, additions[0], number, where, terms)
            by_placement.setdefault(where % self.num_stages, []).append((part, where))
        self._summed(op, additions[0], result, result_stage, list(by_placement.values()))

    def _accumulated(self, op: Op, addition: Op, number: int, where: int, terms: Sequence[str]) -> str:
        """Add the terms of one stage and accumulate the sum; returns the accumulated value."""
        (result,) = op.outputs
        total, *others = terms
        for place, value in enumerate(others):
            total = self._add(addition, f"{op.id}.{number}.{place}", f"{result}.{number}.{place}", (total, value), where)
        part = f"{result}.{number}"
        self.values[part] = self.values[total]
        self.ops.append(replace(op, id=f"{op.id}.{number}", args=(Ref(total),), outputs=(part,)))
        self.stage[f"{op.id}.{number}"] = where
        return part

    def _summed(self, op: Op, addition: Op, result: str, result_stage: int, by_placement: Sequence[Sequence[tuple[str, int]]]) -> None:
        """Once per step: add the values of each placement on it, then add these sums on the stage that reads the result."""
        remaining = sum(map(len, by_placement)) - 1  # additions; the last one makes the result
        placement_sums: list[tuple[str, int]] = []
        for parts in (*by_placement, placement_sums):
            total, where = parts[0]
            for part, _ in parts[1:]:
                remaining -= 1
                name = f"{result}.sum{remaining}" if remaining else result
                at = result_stage if parts is placement_sums else where
                total = self._add(replace(addition, role=Role.UPDATE), f"{op.id}.sum{remaining}", name, (total, part), at)
            if parts is not placement_sums:
                placement_sums.append((total, where))

    def _add(self, addition: Op, op_id: str, name: str, terms: tuple[str, str], stage: int) -> str:
        self.values[name] = self.values[terms[1]]
        self.ops.append(replace(addition, id=op_id, args=(Ref(terms[0]), Ref(terms[1])), outputs=(name,)))
        self.stage[op_id] = stage
        return name
