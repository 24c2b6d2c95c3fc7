"""Passes between the traced graph and the search, so that nothing needless crosses a border.

1. Views and creations are cheap: each (stage, role) that needs one makes its own, and the base crosses instead (no view of a parameter is
   ever kept as an activation, no alias is counted as bytes twice).
2. With recompute, what is made inside a numbered block (h.0, h.1, ...) is made again by the backward part, from what enters the block: of each
   block only its inputs are kept (Chen et al. 2016, OneFlow's CheckpointingPass).  The copies stand right before their first reader.
3. Gradients of a parameter that several stages read are accumulated where they arise, and meet once per step instead of once per
   micro-batch:  acc(a + b) = acc(a) + acc(b).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Ref, Role
from planner.ir.tensor import TensorType
from planner.opset import is_creation, is_view

__all__ = ["Staged", "block_of", "check_recompute", "is_recomputed", "prepare", "region_of"]

Region = tuple[int, Role]


@dataclass(frozen=True)  # no slots: the homes are kept
class Staged:
    """A graph whose ops know their stage.

    interleaved: with v > 1 stages per placement, op id -> its stage among num_stages x v; ``stage`` is that modulo num_stages.
    """

    graph: LogicalGraph
    stage: Mapping[str, int]
    num_stages: int
    interleaved: Mapping[str, int] = field(default_factory=dict)

    def fragment_stage(self, op: Op) -> int:
        """The stage whose fragments hold the op: updates of all stages of a placement may share one."""
        return self.stage[op.id] if op.role is Role.UPDATE else self.interleaved.get(op.id, self.stage[op.id])

    def home(self, value: str) -> int:
        """The stage on which a state input lives: that of the op that updates it, else of its first reader."""
        return self._homes.get(value, 0)

    @cached_property
    def _homes(self) -> Mapping[str, int]:
        reader: dict[str, int] = {}
        maker: dict[str, int] = {}
        for op in self.graph.ops:
            stage = self.stage[op.id]
            for value in op.inputs:
                reader.setdefault(value, stage)
            maker.update((value, stage) for value in op.outputs if value is not None)
        return reader | {old: maker.get(new, 0) for old, new in self.graph.updates.items()}


def region_of(op: Op, stage: Mapping[str, int], producers: Mapping[str, Op]) -> Region:
    """(stage, role); an accumulate op belongs to the role of what it accumulates."""
    if op.role is Role.ACCUMULATE:
        made_by = producers.get(op.inputs[0])
        return stage[op.id], made_by.role if made_by is not None and made_by.role.per_micro_batch else Role.BACKWARD
    return stage[op.id], op.role


def prepare(graph: LogicalGraph, stage: Mapping[str, int], num_stages: int, *, recompute: bool = False, interleave: int = 1) -> Staged:
    """Run the passes; the meaning of the graph does not change.

    Args:
        stage: op id -> stage, of num_stages x interleave.
        recompute: keep the inputs of numbered blocks only, and make the rest again for the backward part.
        interleave: v, stages per placement: stage s lies on placement s mod num_stages.
    """
    staged = _split_accumulates(graph, dict(stage), num_stages)
    prepared, stages = _clone_cheap(*staged, _inside_blocks(graph) if recompute else frozenset())
    prepared = _sunk(prepared) if recompute else prepared
    if interleave == 1:
        return Staged(prepared, stages, num_stages)
    return Staged(prepared, {op: s % num_stages for op, s in stages.items()}, num_stages, stages)


def block_of(module: str) -> str:
    """The modules up to the first number, h.3 of h.3.mlp.c_fc; empty outside of numbered blocks."""
    parts = module.split(".")
    digits = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: digits[0] + 1]) if digits else ""


def is_recomputed(op: Op) -> bool:
    """Whether the op is a copy that the backward part makes of a forward op."""
    return op.role is Role.BACKWARD and op.forward_of is None and "~" in op.id


def check_recompute(graph: LogicalGraph) -> None:
    """Raises Unsupported if recomputing would change nothing: the backward part reads nothing that is made inside a numbered block."""
    inside = _inside_blocks(graph)
    read = {value for op in graph.ops if op.role is Role.BACKWARD for value in op.inputs}
    for op in reversed(graph.ops):
        free = is_view(op) or is_creation(op)
        if op.role is not Role.FORWARD or not (free or op.id in inside) or read.isdisjoint(op.outputs):
            continue
        if not free:
            return
        read.update(op.inputs)
    modules = list(dict.fromkeys(op.module for op in graph.ops if op.role is Role.FORWARD and op.module))
    raise Unsupported(
        f"recompute makes again what numbered blocks (h.0, h.1, ...) keep for their own backward part, and none of the {len(modules)} modules of "
        f"this model keeps anything inside of one (modules are {', '.join(modules[:8])} ...); put the layers, and the functions between them, "
        f"into a ModuleList of blocks, or do not ask for recompute"
    )


def _inside_blocks(graph: LogicalGraph) -> frozenset[str]:
    """Forward ops in numbered blocks whose results no forward op outside of their block reads."""
    consumers = graph.consumers()
    inside = set()
    for op in graph.ops:
        block = block_of(op.module)
        if op.role is Role.FORWARD and block:
            readers = [r for v in op.outputs if v for r in consumers[v]]
            if all(block_of(r.module) == block for r in readers if r.role is Role.FORWARD):
                inside.add(op.id)
    return frozenset(inside)


def _sunk(graph: LogicalGraph) -> LogicalGraph:
    """Copies made again stand right before their first reader, so that they live no longer than they must."""
    copies = {v: op for op in graph.ops if is_recomputed(op) for v in op.outputs if v}
    placed: dict[str, Op] = {}
    for op in graph.ops:
        if is_recomputed(op):
            continue
        path = [op]
        while path:
            waiting = next((copies[v] for v in path[-1].inputs if v in copies and copies[v].id not in placed), None)
            if waiting is None:
                ready = path.pop()
                placed.setdefault(ready.id, ready)
            else:
                path.append(waiting)
    return replace(graph, ops=tuple(placed.values()))


def _split_accumulates(graph: LogicalGraph, stage: dict[str, int], num_stages: int) -> tuple[LogicalGraph, dict[str, int]]:
    """acc(a + b + c) with a, b and c from different stages becomes acc(a) + acc(b) + acc(c), each where it arises.

    Those of one stage are added there before, and sums of several stages on one placement (s mod num_stages) before they leave it.
    """
    producers, consumers = graph.producers(), graph.consumers()
    values = dict(graph.values)
    ops: list[Op] = []
    dropped: set[str] = set()
    for op in graph.ops:
        adders, leaves = _sum_tree(op.inputs[0], producers, consumers) if op.role is Role.ACCUMULATE else ((), ())
        by_stage: dict[int, list[str]] = {}
        for value in leaves:
            made_by = producers.get(value)
            by_stage.setdefault(stage[made_by.id] if made_by is not None else -1, []).append(value)
        if -1 in by_stage or len(by_stage) < 2:
            ops.append(op)
            continue
        dropped.update(adder.id for adder in adders)
        (result,) = op.outputs
        assert result is not None
        adder = adders[0]
        home = next((stage[r.id] for r in consumers[result]), stage[adder.id])
        parts: dict[int, list[tuple[str, int]]] = {}  # by placement: value and stage
        for number, (where, (total, *others)) in enumerate(by_stage.items()):
            for place, value in enumerate(others):
                name = f"{result}.{number}.{place}"
                values[name] = values[value]
                ops.append(replace(adder, id=f"{op.id}.{number}.{place}", args=(Ref(total), Ref(value)), outputs=(name,)))
                stage[f"{op.id}.{number}.{place}"] = where
                total = name
            part = f"{result}.{number}"
            values[part] = values[total]
            ops.append(replace(op, id=f"{op.id}.{number}", args=(Ref(total),), outputs=(part,)))
            stage[f"{op.id}.{number}"] = where
            parts.setdefault(where % num_stages, []).append((part, where))
        left = sum(map(len, parts.values())) - 1  # additions to come; the last one makes the result
        leaving: list[tuple[str, int]] = []
        for here in (*parts.values(), leaving):
            total, where = here[0]
            for part, _ in here[1:]:
                left -= 1
                name = f"{result}.sum{left}" if left else result
                values[name] = values[part]
                ops.append(replace(adder, id=f"{op.id}.sum{left}", args=(Ref(total), Ref(part)), outputs=(name,), role=Role.UPDATE))
                stage[f"{op.id}.sum{left}"] = where if here is not leaving else home
                total = name
            if here is not leaving:
                leaving.append((total, where))
    kept = tuple(op for op in ops if op.id not in dropped)
    used = {v for op in kept for v in (*op.inputs, *op.outputs) if v} | {i.value for i in graph.inputs}
    return replace(graph, ops=kept, values={v: t for v, t in values.items() if v in used}), stage


def _sum_tree(value: str, producers: Mapping[str, Op], consumers: Mapping[str, Sequence[Op]]) -> tuple[tuple[Op, ...], tuple[str, ...]]:
    """The plain additions that make up a value nobody else reads, and what they add, in order."""
    made_by = producers.get(value)
    if (
        made_by is None
        or made_by.target != "aten.add.Tensor"
        or len(made_by.args) != 2
        or len(made_by.inputs) != 2
        or made_by.kwargs
        or len(consumers[value]) != 1
    ):
        return (), (value,)
    left, right = (_sum_tree(part, producers, consumers) for part in made_by.inputs)
    return (made_by, *left[0], *right[0]), (*left[1], *right[1])


def _clone_cheap(graph: LogicalGraph, stage: dict[str, int], again: frozenset[str]) -> tuple[LogicalGraph, dict[str, int]]:
    producers = graph.producers()
    regions = {op.id: region_of(op, stage, producers) for op in graph.ops}
    wanted: dict[str, dict[Region, None]] = {}  # value -> regions that read it, filled from the back
    keep = {graph.loss, graph.mean_loss, *graph.gradients.values(), *graph.updates.values()}
    values = dict(graph.values)
    out: list[Op] = []
    for op in reversed(graph.ops):
        here = regions[op.id]
        readers = {region: None for value in op.outputs if value for region in wanted.get(value, {})}
        cheap = (is_view(op) or is_creation(op) or op.id in again) and not any(value in keep for value in op.outputs)
        homes = list(readers) if cheap else [here]
        for region in homes:
            clone = op if region == here else _clone(op, region, values, stage)
            out.append(clone)
            for value in op.inputs:
                wanted.setdefault(value, {})[region] = None
    out.reverse()
    cloned = {value: None for op in out for value in op.outputs if value}
    aliased = {alias.rpartition("~")[0] for alias in cloned}
    renamed = []
    for op in out:
        region = _region_from_id(op, regions, stage)
        names = {value: alias for value in op.inputs if value in aliased and (alias := _alias(value, region)) in cloned}
        renamed.append(op.renamed(names))
    used = {v for op in renamed for v in (*op.inputs, *op.outputs) if v} | {i.value for i in graph.inputs}
    trimmed = replace(graph, ops=tuple(renamed), values={v: t for v, t in values.items() if v in used})
    trimmed.verify()
    return trimmed, {op.id: stage[op.id] for op in renamed}


def _alias(value: str, region: Region) -> str:
    return f"{value}~{region[0]}{region[1].value[0]}"


def _clone(op: Op, region: Region, values: dict[str, TensorType], stage: dict[str, int]) -> Op:
    outputs = tuple(_alias(v, region) if v else None for v in op.outputs)
    for old, new in zip(op.outputs, outputs, strict=True):
        if old and new:
            values[new] = values[old]
    clone = replace(op, id=_alias(op.id, region), outputs=outputs, role=region[1])
    stage[clone.id] = region[0]
    return clone


def _region_from_id(op: Op, regions: Mapping[str, Region], stage: Mapping[str, int]) -> Region:
    return regions.get(op.id, (stage[op.id], op.role))
