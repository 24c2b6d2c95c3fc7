"""A staged graph as a choice problem: who chooses, what each choice costs, and what it costs to get from one to the next.

node                     chooses                                       costs
op                       an NdSbp signature                            roofline of one rank's part, per step
state                    the layout it is stored in                    0 (a split a hair more, so that ties stay whole)
delivery of a value      the layout in which a stage gets a value      0
                         that several ops read
edge                     from what is there to what is needed          boxing, per step

With a limit on memory, a delivery says besides whether it is what is there already, a boxed copy, or (a parameter) one that is boxed for the
forward part and again for the backward part, ZeRO-3 (planner.search.zero).  Demands on a stage's devices are its states;
when its forward part is done, what the backward part will read, copies included, once per micro-batch in flight; when its backward part is
done, the accumulated gradients.  A Plan holds more (what is on its way), never less.

A value that several ops of a stage read is delivered once, in a layout of the search's choice, from where each reader may box on: one
all-gather serves all (OneFlow's proxy node; TePDist and Alpa let every reader pay).  Batch inputs and constants are there in any layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from planner.boxing import kinds_in
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, Op, Role
from planner.ir.sbp import NdSbp, Split
from planner.ir.tensor import TensorType
from planner.search.layout_costs import LayoutCosts
from planner.search.model import SearchModel, StageCounts
from planner.search.pins import Pin, pinned_inputs, pinned_outputs
from planner.search.strategies import Strategy, StrategySet, StrategySets
from planner.search.zero import DeliveryMode, most_split, num_splits
from planner.solve.problem import Demand, Edge, Floats, Problem
from planner.stages import Staged
from planner.stages.blocks import unshard_unit

__all__ = ["build_model"]

_TIE_S = 1e-8


def build_model(
    staged: Staged,
    mesh: tuple[int, ...],
    cluster: Cluster,
    pins: Sequence[Pin],
    micro_batches: int,
    *,
    limit_bytes: float = inf,
    in_flight: Sequence[int] = (),
    tools: tuple[LayoutCosts, StrategySets] | None = None,
    zero: int | None = None,
    kept: frozenset[str] | None = None,
) -> SearchModel:
    """State the search for one mesh.

    Args:
        mesh: devices per axis inside each stage.
        micro_batches: how often per step the micro-batch part acts.
        limit_bytes: what a device may hold of states, gradients, deliveries and values kept for the backward pass; infinite: no memory rows.
        in_flight: per stage, how many micro-batches wait for their backward pass; needed where there is a limit.
        tools: prices and menus of this mesh and cluster, from a model built before; what they know is not worked out again.
        zero: a level of planner.search.zero that is asked for; None: the search is free.
        kept: the graph is a piece of a model; these values are kept for the backward part of another.

    Raises:
        UnknownOp: an op has no rule.   Unsupported: pins that cannot hold.
    """
    prices, menus = tools if tools is not None else (LayoutCosts(cluster, mesh), StrategySets(mesh))
    return _Builder(staged, mesh, prices, menus, pins, micro_batches, limit_bytes, in_flight, zero, kept).build()


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """Where a value comes from: a node and the layout it gives under each of its strategies."""

    node: int
    layouts: tuple[NdSbp, ...]
    stage: int
    count: int
    bucketed: bool


class _Builder:
    def __init__(
        self,
        staged: Staged,
        mesh: tuple[int, ...],
        prices: LayoutCosts,
        menus: StrategySets,
        pins: Sequence[Pin],
        micro_batches: int,
        limit_bytes: float,
        in_flight: Sequence[int],
        zero: int | None,
        kept: frozenset[str] | None,
    ) -> None:
        self.zero, self.kept = zero, kept
        self.limit_bytes = limit_bytes
        self.in_flight = tuple(in_flight)
        self.demands: list[Demand] = []
        self.staged, self.graph, self.mesh = staged, staged.graph, mesh
        self.micro_batches, self.m = micro_batches, micro_batches + staged.num_stages - 1
        self.node_stage: list[int] = []
        self.node_count: list[int] = []
        self.edge_stage: list[int] = []
        self.edge_count: list[int] = []
        self.prices = prices
        self.menus = menus
        self.pinned = pinned_inputs(self.graph, pins, mesh)
        self.pinned_outputs = pinned_outputs(self.graph, pins, mesh)
        self.names: list[str] = []
        self.costs: list[Floats] = []
        self.edges: list[Edge] = []
        self.ops: dict[str, tuple[int, tuple[Strategy, ...]]] = {}
        self.states: dict[str, tuple[int, tuple[NdSbp, ...]]] = {}
        self.deliveries: dict[tuple[str, int], tuple[int, tuple[NdSbp, ...]]] = {}
        self.sources: dict[str, _Source] = {}
        self.inputs = {i.value: i for i in self.graph.inputs}
        self._op_costs: dict[tuple[int, int], Floats] = {}
        self._leaves: dict[tuple[int, int], tuple[NdSbp, ...]] = {}
        self._unions: dict[tuple[int, ...], tuple[NdSbp, ...]] = {}
        self._matrices: dict[tuple[object, ...], Floats] = {}
        self._kept: dict[int, tuple[object, ...]] = {}
        self._stored: dict[tuple[TensorType, bool], tuple[tuple[NdSbp, ...], Floats]] = {}
        self._menu_of: dict[str, StrategySet] = {}
        self._zero: dict[int, Floats] = {}
        self._amounts: dict[tuple[int, TensorType, tuple[int, ...]], Floats] = {}
        self._repeated: dict[tuple[int, int], tuple[NdSbp, ...]] = {}
        self._least: dict[int, tuple[NdSbp, ...]] = {}
        self.saved: set[tuple[str, int]] = set()
        self.ways: dict[tuple[str, int], tuple[DeliveryMode, ...]] = {}
        self.read_by: dict[tuple[str, int], set[Role]] = {}
        self.updated = frozenset(self.graph.updates.values())
        self.by_id = {op.id: op for op in self.graph.ops}
        self.units: dict[tuple[str, int], set[str]] = {}
        self.last_unit: dict[int, str] = {}

    def build(self) -> SearchModel:
        graph, stage = self.graph, self.staged.stage
        homes = self._homes()
        for i in graph.inputs:
            if i.value in graph.updates:
                self._state(i.value, homes[i.value])
        readers = self._readers(homes)
        self._find_saved(readers)
        for value in self.states:
            self._deliver(value, readers)
        for op in graph.ops:
            menu = self._menu(op)
            node = self._node(op.id, self._op_cost(op, menu), stage[op.id], self.m if op.role.per_micro_batch else 1)
            self.ops[op.id] = (node, menu.strategies)
            for value in dict.fromkeys(op.inputs):
                needs = self._layouts(menu, op.inputs.index(value), outputs=False)
                self._need(value, stage[op.id], node, needs, op.role)
            for place, made in enumerate(op.outputs):
                if made is None:
                    continue
                count = self.m if op.role in (Role.FORWARD, Role.BACKWARD) else 1
                bucketed = op.role in (Role.ACCUMULATE, Role.UPDATE)
                self.sources[made] = _Source(node, self._layouts(menu, place, outputs=True), stage[op.id], count, bucketed)
                self._deliver(made, readers)
                here = stage[op.id]
                if (made, here) in self.saved:
                    blocks = 1 if (made, here) in self.deliveries else self.in_flight[here]
                    self._hold(node, self.sources[made].layouts, graph.values[made], (2 * here, 2 * here + 1), blocks)
                elif self.kept is not None and made in self.kept:
                    whole_or_split = self._reduced(self.sources[made].layouts, graph.values[made])
                    self._hold(node, whole_or_split, graph.values[made], (2 * here, 2 * here + 1), self.in_flight[here])
                elif op.role is Role.ACCUMULATE and self.micro_batches > 1:
                    goes_on = bool(self.in_flight) and self.micro_batches > self.in_flight[here]  # a forward part follows a backward part
                    self._hold(node, self.sources[made].layouts, graph.values[made], (2 * here + (not goes_on), 2 * here + 2), 1)
        for old, new in graph.updates.items():
            node, layouts = self.states[old]
            self._need(new, homes[old], node, layouts)
        whole = self._node("<loss>", np.zeros(1))
        if graph.mean_loss in self.sources:
            self._need(graph.mean_loss, self.sources[graph.mean_loss].stage, whole, (NdSbp.broadcast(len(self.mesh)),))
        problem = Problem(tuple(self.names), tuple(self.costs), tuple(self.edges), tuple(self.demands), self.limit_bytes)
        where = StageCounts(self.node_stage, self.node_count, self.edge_stage, self.edge_count)
        held = {key: tuple(h for h in ways for _ in range(len(self.deliveries[key][1]) // len(ways))) for key, ways in self.ways.items()}
        once = frozenset(
            key
            for key, ways in self.ways.items()
            if DeliveryMode.COPIED in ways and self._is_parameter(key[0]) and self._times_again(*key) == 1
        )
        return SearchModel(
            self.staged, self.prices, problem, self.ops, self.states, self.deliveries, self.pinned, self.micro_batches, where, held, once
        )

    def _node(self, name: str, costs: Floats, stage: int = 0, count: int = 1) -> int:
        self.names.append(name)
        self.costs.append(costs)
        self.node_stage.append(stage)
        self.node_count.append(count)
        return len(self.names) - 1

    def _homes(self) -> dict[str, int]:
        """The stage of every state input that is updated."""
        made = {value: op for op in self.graph.ops for value in op.outputs if value}
        return {old: self.staged.stage[made[new].id] if new in made else self.staged.home(old) for old, new in self.graph.updates.items()}

    def _readers(self, homes: Mapping[str, int]) -> dict[tuple[str, int], list[tuple[Op | None, str]]]:
        """(value, stage) -> who needs it there: ops, and states that it replaces."""
        readers: dict[tuple[str, int], list[tuple[Op | None, str]]] = {}
        for op in self.graph.ops:
            for value in dict.fromkeys(op.inputs):
                readers.setdefault((value, self.staged.stage[op.id]), []).append((op, value))
                self.read_by.setdefault((value, self.staged.stage[op.id]), set()).add(op.role)
                if op.role is Role.FORWARD and value in self.states:
                    self.last_unit[self.staged.stage[op.id]] = unshard_unit(op, self.by_id)
                    self.units.setdefault((value, self.staged.stage[op.id]), set()).add(unshard_unit(op, self.by_id))
        for old, new in self.graph.updates.items():
            readers.setdefault((new, homes[old]), []).append((None, old))
        return readers

    def _state(self, value: str, home: int) -> None:
        tensor, kind = self.graph.values[value], self.inputs[value].kind
        least = {InputKind.OPTIMIZER_STATE: 1, InputKind.PARAMETER: 3}.get(kind)
        layouts, costs = self._stores(tensor, split=self.zero is not None and least is not None and self.zero >= least)
        if value in self.pinned:
            layouts, costs = (self.pinned[value],), np.zeros(1)
        node = self._node(f"state {self.inputs[value].name}", costs)
        self.states[value] = (node, layouts)
        self._hold(node, layouts, tensor, (2 * home, 2 * home + 2), 1)
        buffer = self.inputs[value].kind is InputKind.BUFFER
        self.sources[value] = _Source(node, layouts, home, self.m if buffer else 1, True)

    def _stores(self, tensor: TensorType, *, split: bool) -> tuple[tuple[NdSbp, ...], Floats]:
        """Layouts in which a state may be stored, and a hair of cost for every split.  split: only those that split as much as can be."""
        if (tensor, split) not in self._stored:
            layouts = _storable(tensor, self.mesh)
            if split:
                layouts = tuple(sbp for sbp, most in zip(layouts, most_split(layouts), strict=True) if most)
            self._stored[tensor, split] = layouts, np.array([_TIE_S * num_splits(sbp) for sbp in layouts])
        return self._stored[tensor, split]

    def _menu(self, op: Op) -> StrategySet:
        if op.id not in self._menu_of:
            self._menu_of[op.id] = self._find_menu(op)
        return self._menu_of[op.id]

    def _find_menu(self, op: Op) -> StrategySet:
        menu = self.menus.of(op, self.graph.values)
        if op.role is Role.ACCUMULATE and self.zero in (2, 3) and self.micro_batches > 1:
            split = most_split([s.outputs[0] for s in menu.strategies])
            menu = StrategySet(-1 - len(self._menu_of), tuple(s for s, most in zip(menu.strategies, split, strict=True) if most))
        pins = [(place, self.pinned_outputs[v]) for place, v in enumerate(op.outputs) if v is not None and v in self.pinned_outputs]
        if not pins:
            return menu
        kept = tuple(s for s in menu.strategies if all(s.outputs[place] == sbp for place, sbp in pins))
        if not kept:
            ways = "; ".join(dict.fromkeys(str(s.outputs[pins[0][0]]) for s in menu.strategies))
            raise Unsupported(f"{op.where()} cannot return {pins[0][1]} on mesh {'x'.join(map(str, self.mesh))}; its rule allows {ways}")
        return StrategySet(-1 - len(self._menu_of), kept)

    def _op_cost(self, op: Op, menu: StrategySet) -> Floats:
        count = self.m if op.role.per_micro_batch else 1
        if op.role is Role.ACCUMULATE:
            count = 0  # done while the gradient is written; no reason to reduce it before, once per micro-batch
        key = (menu.number, count)
        if key not in self._op_costs:
            self._op_costs[key] = np.array([count * self.prices.op_s(s) for s in menu.strategies])
        return self._op_costs[key]

    def _layouts(self, menu: StrategySet, place: int, *, outputs: bool) -> tuple[NdSbp, ...]:
        key = (menu.number, place if outputs else -1 - place)
        if key not in self._leaves:
            self._leaves[key] = tuple((s.outputs if outputs else s.inputs)[place] for s in menu.strategies)
        return self._leaves[key]

    def _deliver(self, value: str, readers: Mapping[tuple[str, int], list[tuple[Op | None, str]]]) -> None:
        """A node of its own for a value that several ops of one stage read."""
        source = self.sources[value]
        for stage in range(self.staged.num_stages):
            here = readers.get((value, stage), [])
            if len(here) < 2 and (value, stage) not in self.saved:
                continue
            needs = []
            for op, name in here:
                if op is None:
                    needs.append(self.states[name][1])
                else:
                    needs.append(self._layouts(self._menu(op), op.inputs.index(name), outputs=False))
            layouts = self._union((source.layouts, *needs))
            logical = self.graph.values[value]
            ways = self._ways(value, stage, source)
            layouts = self._repeat(layouts, len(ways))
            node = self._node(f"{value} for stage {stage}", self._zeros(len(layouts)))
            self._connect(source, stage, node, layouts, logical, ways=ways, again=self._times_again(value, stage))
            self._hold_delivery(value, source, stage, node, layouts, ways)
            self.deliveries[value, stage] = (node, layouts)
            self.ways[value, stage] = ways

    def _is_parameter(self, value: str) -> bool:
        return value in self.states and self.inputs[value].kind is InputKind.PARAMETER

    def _ways(self, value: str, stage: int, source: _Source) -> tuple[DeliveryMode, ...]:
        """How this value may be had on a stage."""
        at_home = self._is_parameter(value) and source.stage == stage
        if at_home and self.zero is not None:
            return (DeliveryMode.IN_PLACE, DeliveryMode.REGATHERED) if self.zero == 3 else (DeliveryMode.IN_PLACE,)
        if self.zero == 0 and value in self.updated:
            return (DeliveryMode.IN_PLACE,)
        if self.limit_bytes == inf:
            return (DeliveryMode.ANY,)
        if at_home and ((value, stage) in self.saved or self._times_again(value, stage) > 1):
            return (DeliveryMode.IN_PLACE, DeliveryMode.COPIED, DeliveryMode.REGATHERED)
        return (DeliveryMode.IN_PLACE, DeliveryMode.COPIED)

    def _times_again(self, value: str, stage: int) -> int:
        """How often per step a value is delivered that is delivered anew to the forward and to the backward part of every micro-batch."""
        return self.m * len(self.read_by[value, stage] & {Role.FORWARD, Role.BACKWARD})

    def _hold_delivery(
        self, value: str, source: _Source, stage: int, node: int, layouts: tuple[NdSbp, ...], ways: tuple[DeliveryMode, ...]
    ) -> None:
        """A kept copy of what the backward part, or the next micro-batch, will read; of what is gathered again, that of the last block."""
        saved = (value, stage) in self.saved
        if not saved and DeliveryMode.REGATHERED not in ways:
            return
        held = self.in_flight[stage] if self.in_flight and value not in self.states else 1
        blocks = {
            DeliveryMode.ANY: 0,
            DeliveryMode.IN_PLACE: held - 1 if source.stage == stage else 0,
            DeliveryMode.COPIED: held,
            DeliveryMode.REGATHERED: 0,
        }
        if self.kept is None and self.last_unit.get(stage) in self.units.get((value, stage), ()):
            blocks[DeliveryMode.REGATHERED] = 1  # the backward part begins with it
        self._hold(node, layouts, self.graph.values[value], (2 * stage, 2 * stage + 1), *(blocks[way] for way in ways))

    def _find_saved(self, readers: Mapping[tuple[str, int], list[tuple[Op | None, str]]]) -> None:
        """(value, stage) of what the forward part makes or reads and the backward part of the stage reads later."""
        if self.limit_bytes == inf:
            return
        forward = {value for op in self.graph.ops if op.role is Role.FORWARD for value in op.outputs if value}
        for (value, stage), here in readers.items():
            roles = {op.role for op, _ in here if op is not None}
            if Role.BACKWARD in roles and (value in forward or (value in self.states and Role.FORWARD in roles)):
                self.saved.add((value, stage))

    def _hold(self, node: int, layouts: tuple[NdSbp, ...], logical: TensorType, when: tuple[int, int], *blocks: int) -> None:
        """The node's layouts hold so many blocks of a value at times [begin, end): one number for all of them, or one for each equal share.

        Stage s is fullest at time 2 s, when its forward part is done, or at 2 s + 1, when its backward part is.
        """
        if self.limit_bytes == inf or not any(blocks):
            return
        key = (id(layouts), logical, blocks)
        if key not in self._amounts:
            size = [logical.with_shape(sbp.local_shape(logical.shape, self.mesh)).size_bytes for sbp in layouts]
            self._amounts[key] = np.array(size, dtype=np.float64) * np.repeat(blocks, len(layouts) // len(blocks))
            self._kept[len(self._kept)] = (layouts,)
        self.demands.append(Demand(node, *when, self._amounts[key]))

    def _reduced(self, layouts: tuple[NdSbp, ...], logical: TensorType) -> tuple[NdSbp, ...]:
        """As little as may be kept of each: what is partial, split as much as can be."""
        if id(layouts) not in self._least:
            stores = self._stores(logical, split=True)[0]
            self._kept[len(self._kept)] = (layouts,)
            self._least[id(layouts)] = tuple(stores[0] if sbp.has_partial else sbp for sbp in layouts)
        return self._least[id(layouts)]

    def _repeat(self, layouts: tuple[NdSbp, ...], times: int) -> tuple[NdSbp, ...]:
        """The layouts once for each way to have them."""
        if times == 1:
            return layouts
        return self._repeated.setdefault((id(layouts), times), layouts * times)  # a union is kept for good, and so is its id

    def _zeros(self, size: int) -> Floats:
        return self._zero.setdefault(size, np.zeros(size))

    def _union(self, parts: tuple[tuple[NdSbp, ...], ...]) -> tuple[NdSbp, ...]:
        key = tuple(id(part) for part in parts)
        if key not in self._unions:
            self._kept[len(self._kept)] = parts  # keeps the ids from being used again
            self._unions[key] = tuple(dict.fromkeys(sbp for part in parts for sbp in part))
        return self._unions[key]

    def _need(self, value: str, stage: int, node: int, needs: tuple[NdSbp, ...], role: Role | None = None) -> None:
        """``node`` needs a value: an edge from whoever delivers it."""
        source = self.sources.get(value)
        if source is None:
            if value in self.pinned:
                fixed = _Source(self._fixed(value), (self.pinned[value],), stage, self.m, False)
                self._connect(fixed, stage, node, needs, self.graph.values[value])
            return
        delivery = self.deliveries.get((value, stage))
        near: tuple[bool, ...] = (False,)
        if delivery is not None:
            source = _Source(delivery[0], delivery[1], stage, source.count, source.bucketed)
            near = tuple(self._is_final(value, stage, way, role) for way in self.ways[value, stage])
        elif self.zero == 0 and role is None and value in self.updated:
            near = (True,)
        if role is Role.ACCUMULATE and self.micro_batches > 1:
            source = replace(source, bucketed=True)  # a block's gradients travel together
        self._connect(source, stage, node, needs, self.graph.values[value], near=near)

    def _is_final(self, value: str, stage: int, way: DeliveryMode, role: Role | None) -> bool:
        """Whether what is delivered so must not be boxed any more: each micro-batch would pay, nobody would count it, or a ZeRO level forbids it."""
        if role is Role.BACKWARD and (value, stage) in self.saved:
            return True  # what it makes of it would lie there from the forward part on
        if role in (Role.FORWARD, Role.BACKWARD):
            counted = self.limit_bytes < inf or (
                way is DeliveryMode.IN_PLACE and self.zero is not None
            )  # a copy that a reader makes would not be
            return way is DeliveryMode.REGATHERED or (counted and self._is_parameter(value))
        return self.zero == 0 and role is None and value in self.updated

    def _fixed(self, value: str) -> int:
        return self._node(f"pinned {self.inputs[value].name}", np.zeros(1))

    def _connect(
        self,
        source: _Source,
        stage: int,
        node: int,
        needs: tuple[NdSbp, ...],
        logical: TensorType,
        *,
        ways: tuple[DeliveryMode, ...] = (DeliveryMode.ANY,),
        again: int = 0,
        near: tuple[bool, ...] = (False,),
    ) -> None:
        """An edge from a source.

        Args:
            ways: how ``needs`` are had, an equal share of them each;  again: how often per step what is delivered again is.
            near: whether the source's layouts, an equal share each, may only be cut or padded on the way.
        """
        here = source.stage == stage
        key = (id(source.layouts), id(needs), logical, source.count, source.bucketed, not here, ways, near)
        matrix = self._matrices.get(key)
        if matrix is None:
            matrix = source.count * self._boxing_s(source, needs, logical, here=here)
            share = len(needs) // len(ways)
            table = self.prices.boxing_table(logical, source.bucketed, kinds_in((*source.layouts, *needs)))
            rows, places = np.array([table.index[p] for p in source.layouts]), np.array([table.index[c] for c in needs])
            same = (rows[:, None] == places[None, :share]) & here
            for number, way in enumerate(ways):
                columns = slice(number * share, (number + 1) * share)
                if way is not DeliveryMode.ANY:
                    matrix[:, columns][same if way is not DeliveryMode.IN_PLACE else ~same] = np.inf
                if way is DeliveryMode.REGATHERED:
                    matrix[:, columns][np.isfinite(matrix[:, columns])] = 0.0
            if any(near):
                kept = np.repeat(near, len(source.layouts) // len(near))
                matrix[kept[:, None] & ~table.is_local[np.ix_(rows, places)]] = np.inf
            self._matrices[key] = matrix
            self._kept[len(self._kept)] = (source.layouts, needs)
        if DeliveryMode.REGATHERED in ways:
            self._pay_again(source, stage, node, needs, logical, ways, again)
        if not np.isfinite(matrix).any():
            raise Unsupported(
                f"no legal combination: {self.names[source.node]} gives {'|'.join(map(str, dict.fromkeys(source.layouts)))}, "
                f"{self.names[node]} needs {'|'.join(map(str, dict.fromkeys(needs)))}; "
                f"the pins contradict each other or cut something that must stay whole; remove a pin or choose another mesh"
            )
        self._join(source.node, node, matrix, stage, source.count)

    def _join(self, u: int, v: int, matrix: Floats, stage: int, count: int) -> None:
        if matrix.any():
            self.edges.append(Edge(u, v, matrix))
            self.edge_stage.append(stage)
            self.edge_count.append(count)

    def _boxing_s(self, source: _Source, needs: tuple[NdSbp, ...], logical: TensorType, *, here: bool) -> Floats:
        """Seconds from each of the source's layouts to each of those needed, once."""
        if here:
            table = self.prices.boxing_table(logical, source.bucketed, kinds_in((*source.layouts, *needs)))
            rows, columns = [table.index[p] for p in source.layouts], [table.index[c] for c in needs]
            return table.price_s[np.ix_(rows, columns)]
        distinct = {(p, c) for p in source.layouts for c in needs}
        hop_s = {pair: self.prices.transfer_s(logical, *pair, bucketed=source.bucketed) for pair in distinct}
        return np.array([[hop_s[p, c] for c in needs] for p in source.layouts])

    def _pay_again(
        self,
        source: _Source,
        stage: int,
        node: int,
        needs: tuple[NdSbp, ...],
        logical: TensorType,
        ways: tuple[DeliveryMode, ...],
        again: int,
    ) -> None:
        """What is delivered ``again`` times per step, in every micro-batch, is paid by an edge of its own."""
        key = (id(source.layouts), id(needs), logical, ways, again)
        if key not in self._matrices:
            matrix = np.zeros((len(source.layouts), len(needs)))
            share = len(needs) // len(ways)
            first = ways.index(DeliveryMode.REGATHERED) * share
            price_s = self._boxing_s(source, needs[:share], logical, here=True)
            matrix[:, first : first + share] = again * np.where(np.isfinite(price_s), price_s, 0.0)
            self._matrices[key] = matrix
        self._join(source.node, node, self._matrices[key], stage, self.m)


def _storable(tensor: TensorType, mesh: tuple[int, ...]) -> tuple[NdSbp, ...]:
    """Layouts without partial values, whole first."""
    found: list[NdSbp] = [NdSbp(())]
    for axis in range(len(mesh)):
        entries = [NdSbp.broadcast(1).entries[0]]
        if mesh[axis] > 1:
            entries += [Split(d) for d in range(tensor.ndim)]
        found = [NdSbp((*sbp.entries, e)) for sbp in found for e in entries]
    return tuple(sbp for sbp in found if sbp.splits_evenly(tensor.shape, mesh))
