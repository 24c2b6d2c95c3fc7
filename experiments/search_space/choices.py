"""Every decision about a staged graph and what it costs, stated a second time, without any line of planner.search.formulation or planner.solve.

A decision is a place in a product of small sets: the signature of each op, the layout in which each state is stored, and, where several ops of a
stage read a value, the layout (and where bytes are counted, the way) in which they share it.  A term says what one or two decisions cost:

    bucket                      decisions                              amount
    micro (stage s)             op                                     seconds of its part of a micro-batch on one device of s
    micro, once (stage s)       what makes a value, how it is read     seconds of boxing on s, or of the transfer to s with its boxing
    tie (stage 0)               state                                  10 ns per split: what the planner adds, so that whole comes before split
    held (time 2 s, 2 s + 1)    state, value kept, gradient            bytes on a device of s after its forward part, after its backward part

The step is  sum_s micro_s + (m - 1) max_s micro_s + max_s once_s:  equation of SearchModel.step_s, which 1F1B and GPipe have in common.
Signatures (planner.opset), seconds of ops and of boxing (planner.cost, planner.boxing, by LayoutCosts) are those that the planner has: what is
judged here is what it makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from planner.boxing import kinds_in
from planner.ir.cluster import Cluster
from planner.ir.graph import InputKind, Op, Role
from planner.ir.sbp import B, NdSbp, Split
from planner.ir.tensor import TensorType
from planner.search.layout_costs import LayoutCosts
from planner.search.pins import parse_pins, pinned_inputs, pinned_outputs
from planner.search.strategies import Strategy, StrategySet, StrategySets
from planner.stages import Staged
from planner.stages.blocks import unshard_unit

__all__ = ["Bucket", "Choices", "Kind", "Term", "TooMany", "Way", "choices_of"]

Floats = NDArray[np.float64]
MOST = 1_000_000
"""Combinations."""
TIE_S = 1e-8
"""Seconds that the planner's prices add for every split of a stored state."""


class TooMany(Exception):
    """The space is larger than what is enumerated."""


class Kind(Enum):
    MICRO = "micro"
    ONCE = "once"
    HELD = "held"
    TIE = "tie"


Bucket = tuple[Kind, int]


class Way(Enum):
    """How the readers on a stage share a value: as it is there; boxed once; a parameter gathered again in every pass; or not distinguished."""

    ANY = "any"
    AS_IS = "as it is"
    KEPT = "kept"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Term:
    """amounts: an entry per choice of the nodes (one or two dims)."""

    bucket: Bucket
    nodes: tuple[int, ...]
    amounts: Floats


@dataclass(slots=True)
class Choices:
    """names, sizes: of the decisions.   ops, states, shared: which decision is which, with the meaning of each of its choices."""

    staged: Staged
    costs: LayoutCosts
    micro_batches: int
    most: int
    pinned: dict[str, NdSbp] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    ops: dict[str, tuple[int, tuple[Strategy, ...]]] = field(default_factory=dict)
    states: dict[str, tuple[int, tuple[NdSbp, ...]]] = field(default_factory=dict)
    shared: dict[tuple[str, int], tuple[int, tuple[tuple[NdSbp, Way], ...]]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Of all combinations."""
        return prod(self.sizes)

    def add(self, name: str, size: int) -> int:
        self.names.append(name)
        self.sizes.append(size)
        if self.count > self.most:
            raise TooMany(f"more than {self.most} combinations of the first {len(self.names)} decisions")
        return len(self.names) - 1

    def cost(self, bucket: Bucket, nodes: tuple[int, ...], amounts: Floats) -> None:
        if amounts.any():
            self.terms.append(Term(bucket, nodes, amounts))


def choices_of(
    staged: Staged,
    mesh: tuple[int, ...],
    cluster: Cluster,
    micro_batches: int,
    *,
    pins: Sequence[str] = (),
    counts_bytes: bool = False,
    most: int = MOST,
) -> Choices:
    """All decisions of a shape.

    Args:
        counts_bytes: with terms of bytes; the planner then tells apart the ways in which a value is shared, and forbids those whose bytes
            would escape the count.

    Raises:
        TooMany: there are more combinations than ``most``.
    """
    return _Statement(staged, mesh, Choices(staged, LayoutCosts(cluster, mesh), micro_batches, most), pins, counts_bytes).choices


@dataclass(frozen=True, slots=True)
class _Made:
    """A value where it lies: its decision, the layout under each of its choices, and how often a step boxes it."""

    node: int
    layouts: tuple[NdSbp, ...]
    stage: int
    kind: Kind
    bucketed: bool


class _Statement:
    def __init__(self, staged: Staged, mesh: tuple[int, ...], choices: Choices, pins: Sequence[str], counts_bytes: bool) -> None:
        self.staged, self.graph, self.mesh, self.m, self.counts = staged, staged.graph, mesh, choices.micro_batches, counts_bytes
        self.costs, self.sets = choices.costs, StrategySets(mesh)
        self.choices = choices
        parsed = parse_pins(pins)
        self.pinned, self.pinned_out = pinned_inputs(self.graph, parsed, mesh), pinned_outputs(self.graph, parsed, mesh)
        choices.pinned.update(self.pinned)
        self.made: dict[str, _Made] = {}
        self.readers: dict[tuple[str, int], list[Op]] = {}
        for op in self.graph.ops:
            for value in dict.fromkeys(op.inputs):
                self.readers.setdefault((value, staged.stage[op.id]), []).append(op)
        self.trained = {i.value for i in self.graph.inputs if i.kind is InputKind.PARAMETER and i.value in self.graph.updates}
        self.passed = {v for op in self.graph.ops if op.role is Role.FORWARD for v in op.outputs if v}
        self.frozen: dict[tuple[str, int], _Made] = {}
        self._state()

    def menu(self, op: Op) -> tuple[Strategy, ...]:
        every = self.sets.of(op, self.graph.values).strategies
        wanted = [(place, self.pinned_out[v]) for place, v in enumerate(op.outputs) if v in self.pinned_out]
        return tuple(s for s in every if all(s.outputs[place] == sbp for place, sbp in wanted))

    def in_flight(self, stage: int) -> int:
        return min(self.m, self.staged.num_stages - stage)

    def roles(self, value: str, stage: int) -> set[Role]:
        return {op.role for op in self.readers.get((value, stage), ())}

    def is_kept(self, value: str, stage: int) -> bool:
        """Whether the stage's backward part reads what its forward part makes or reads."""
        roles = self.roles(value, stage)
        is_read_before = value in self.graph.updates and Role.FORWARD in roles
        return self.counts and Role.BACKWARD in roles and (value in self.passed or is_read_before)

    def _state(self) -> None:
        graph, choices = self.graph, self.choices
        for given in graph.inputs:
            value = given.value
            if value not in graph.updates:
                continue
            logical, stage = graph.values[value], self.staged.state_stage(value)
            layouts = (self.pinned[value],) if value in self.pinned else self._storable(logical)
            node = choices.add(f"state {given.name}", len(layouts))
            ties = np.array([TIE_S * sum(isinstance(e, Split) for e in sbp.entries) for sbp in layouts])
            if value not in self.pinned:
                choices.cost((Kind.TIE, 0), (node,), ties)
            choices.states[value] = node, layouts
            self.hold(node, layouts, logical, (2 * stage, 2 * stage + 1))
            kind = Kind.MICRO if given.kind is InputKind.BUFFER else Kind.ONCE
            self.made[value] = _Made(node, layouts, stage, kind, True)
        for value in choices.states:
            self._share(value)
        for op in graph.ops:
            self._op(op)
        for old, new in graph.updates.items():
            node, layouts = choices.states[old]
            self._read(new, self.staged.state_stage(old), node, layouts, None)
        user = choices.add("user", 1)
        if graph.mean_loss in self.made:
            self._read(graph.mean_loss, self.made[graph.mean_loss].stage, user, (NdSbp.broadcast(len(self.mesh)),), None)

    def _storable(self, logical: TensorType) -> tuple[NdSbp, ...]:
        per_axis = [(B, *(Split(d) for d in range(logical.ndim))) if parts > 1 else (B,) for parts in self.mesh]
        return tuple(sbp for sbp in map(NdSbp, product(*per_axis)) if sbp.splits_evenly(logical.shape, self.mesh))

    def _op(self, op: Op) -> None:
        stage, menu, m = self.staged.stage[op.id], self.menu(op), self.m
        node = self.choices.add(op.id, len(menu))
        self.choices.ops[op.id] = node, menu
        kind = Kind.MICRO if op.role.per_micro_batch else Kind.ONCE
        if op.role is not Role.ACCUMULATE:
            self.choices.cost((kind, stage), (node,), self.costs.at(stage).ops_s(StrategySet(menu)))
        for value in dict.fromkeys(op.inputs):
            self._read(value, stage, node, tuple(s.inputs[op.inputs.index(value)] for s in menu), op)
        for place, value in enumerate(op.outputs):
            if value is None:
                continue
            layouts = tuple(s.outputs[place] for s in menu)
            each = Kind.MICRO if op.role in (Role.FORWARD, Role.BACKWARD) else Kind.ONCE
            self.made[value] = _Made(node, layouts, stage, each, op.role in (Role.ACCUMULATE, Role.UPDATE))
            self._share(value)
            logical = self.graph.values[value]
            if self.is_kept(value, stage):
                self.hold(node, layouts, logical, (2 * stage,))
            elif op.role is Role.ACCUMULATE and m > 1:
                times = (2 * stage, 2 * stage + 1) if m > self.in_flight(stage) else (2 * stage + 1,)
                self.hold(node, layouts, logical, times)

    def _share(self, value: str) -> None:
        made, graph = self.made[value], self.graph
        logical, copies = graph.values[value], None
        for stage in range(self.staged.num_stages):
            states = [old for old, new in graph.updates.items() if new == value and self.staged.state_stage(old) == stage]
            ops = self.readers.get((value, stage), [])
            if len(ops) + len(states) < 2 and not self.is_kept(value, stage):
                continue
            needs = [s.inputs[op.inputs.index(value)] for op in ops for s in self.menu(op)]
            needs += [sbp for old in states for sbp in self.choices.states[old][1]]
            layouts = tuple(dict.fromkeys((*made.layouts, *needs)))
            choices = tuple((sbp, way) for way in self._ways(value, stage, made) for sbp in layouts)
            node = self.choices.add(f"{value} on stage {stage}", len(choices))
            self.choices.shared[value, stage] = node, choices
            price = self._boxing(made, layouts, logical, stage, made.bucketed)
            boxed, again = np.empty((len(made.layouts), len(choices))), np.zeros((len(made.layouts), len(choices)))
            passes = len(self.roles(value, stage) & {Role.FORWARD, Role.BACKWARD})
            for (i, src), (j, (dst, way)) in product(enumerate(made.layouts), enumerate(choices)):
                is_same, seconds = src == dst and made.stage == stage, price[i, layouts.index(dst)]
                allowed = way is Way.ANY or is_same == (way is Way.AS_IS)
                boxed[i, j] = (0.0 if way is Way.AGAIN else seconds) if allowed and np.isfinite(seconds) else inf
                again[i, j] = passes * seconds if way is Way.AGAIN and np.isfinite(seconds) else 0.0
            self.choices.cost((made.kind, stage), (made.node, node), boxed)
            self.choices.cost((Kind.MICRO, stage), (made.node, node), again)
            copies = 1 if value in graph.updates else self.in_flight(stage)
            blocks = {Way.ANY: 0, Way.AS_IS: copies - 1, Way.KEPT: copies, Way.AGAIN: int(self._is_last(value, stage))}
            if self.is_kept(value, stage) or any(way is Way.AGAIN for _, way in choices):
                self.hold(node, tuple(s for s, _ in choices), logical, (2 * stage,), [blocks[way] for _, way in choices])

    def _ways(self, value: str, stage: int, made: _Made) -> tuple[Way, ...]:
        updated = {v for op in self.graph.ops if op.role is Role.UPDATE for v in op.inputs} & set(self.graph.updates.values())
        if value in updated and made.stage == stage:
            return (Way.AS_IS,)
        if not self.counts:
            return (Way.ANY,)
        passes = len(self.roles(value, stage) & {Role.FORWARD, Role.BACKWARD})
        slots = self.m + self.staged.num_stages - 1
        again = value in self.trained and made.stage == stage and (self.is_kept(value, stage) or slots * passes > 1)
        return (Way.AS_IS, Way.KEPT, Way.AGAIN) if again else (Way.AS_IS, Way.KEPT)

    def _is_last(self, value: str, stage: int) -> bool:
        """Whether the last unit of the stage's forward part that reads a state reads this one."""
        by_id = {op.id: op for op in self.graph.ops}
        reading = [
            (unshard_unit(op, by_id), v)
            for op in self.graph.ops
            if op.role is Role.FORWARD and self.staged.stage[op.id] == stage
            for v in op.inputs
            if v in self.graph.updates
        ]
        return bool(reading) and (reading[-1][0], value) in reading

    def _read(self, value: str, stage: int, node: int, needs: tuple[NdSbp, ...], reader: Op | None) -> None:
        logical, made, role = self.graph.values[value], self.made.get(value), None if reader is None else reader.role
        if made is None:
            if value in self.pinned:
                made = _Made(self.choices.add(f"pinned {value}", 1), (self.pinned[value],), stage, Kind.MICRO, False)
                self._box(made, node, needs, logical, stage, False, (False,))
            elif self.counts and not self.graph.gradients and self.graph.input_of(value).kind in (InputKind.PARAMETER, InputKind.BUFFER):
                made = self._frozen(value, stage)
                self._box(made, node, needs, logical, stage, True, (True,) * len(made.layouts))
            return
        local = (False,) * len(made.layouts)
        updated = {v for op in self.graph.ops if op.role is Role.UPDATE for v in op.inputs} & set(self.graph.updates.values())
        if (value, stage) in self.choices.shared:
            shared, choices = self.choices.shared[value, stage]
            made = _Made(shared, tuple(sbp for sbp, _ in choices), stage, made.kind, made.bucketed)
            in_pass = role in (Role.FORWARD, Role.BACKWARD)
            local = tuple(
                (role is Role.BACKWARD and self.is_kept(value, stage))
                or (in_pass and (way is Way.AGAIN or (self.counts and value in self.trained)))
                or (role is Role.UPDATE and value in updated)
                for _, way in choices
            )
        elif role is Role.UPDATE and value in updated:
            local = (True,) * len(made.layouts)
        bucketed = made.bucketed or (role is Role.ACCUMULATE and self.m > 1)
        self._box(made, node, needs, logical, stage, bucketed, local)

    def _frozen(self, value: str, stage: int) -> _Made:
        """A parameter of an evaluation, which lies on the stage in one layout."""
        if (value, stage) not in self.frozen:
            reading = self.readers[value, stage]
            layouts = tuple(dict.fromkeys(s.inputs[op.inputs.index(value)] for op in reading for s in self.menu(op)))
            node = self.choices.add(f"{value} on stage {stage}", len(layouts))
            self.hold(node, layouts, self.graph.values[value], (2 * stage, 2 * stage + 1))
            self.frozen[value, stage] = _Made(node, layouts, stage, Kind.ONCE, True)
        return self.frozen[value, stage]

    def _box(
        self, made: _Made, node: int, needs: tuple[NdSbp, ...], logical: TensorType, stage: int, bucketed: bool, local: Sequence[bool]
    ) -> None:
        price = self._boxing(made, needs, logical, stage, bucketed)
        if any(local):
            table = self.costs.at(stage).boxing_table(logical, bucketed, kinds_in((*made.layouts, *needs)))
            for (i, src), (j, dst) in product(enumerate(made.layouts), enumerate(needs)):
                if local[i] and not table.is_local[table.index[src], table.index[dst]]:
                    price[i, j] = inf
        self.choices.cost((made.kind, stage), (made.node, node), price)

    def _boxing(self, made: _Made, needs: tuple[NdSbp, ...], logical: TensorType, stage: int, bucketed: bool) -> Floats:
        """Seconds, once, from each layout of a value to each that is needed on a stage."""

        def seconds(src: NdSbp, dst: NdSbp) -> float:
            if made.stage == stage:
                table = self.costs.at(stage).boxing_table(logical, bucketed, kinds_in((*made.layouts, *needs)))
                return float(table.price_s[table.index[src], table.index[dst]])
            return self.costs.transfer_s(logical, src, dst, bucketed=bucketed, stages=(made.stage, stage))

        known = {pair: seconds(*pair) for pair in set(product(made.layouts, needs))}
        return np.array([[known[src, dst] for dst in needs] for src in made.layouts])

    def hold(self, node: int, layouts: tuple[NdSbp, ...], logical: TensorType, times: tuple[int, ...], blocks: Sequence[int] = ()) -> None:
        """Bytes of a device at those times, in so many blocks per choice (none given: 1)."""
        if not self.counts:
            return
        size = [float(logical.with_shape(sbp.local_shape(logical.shape, self.mesh)).size_bytes) for sbp in layouts]
        for time in times:
            self.choices.cost((Kind.HELD, time), (node,), np.array(size) * (np.array(blocks) if blocks else 1))
