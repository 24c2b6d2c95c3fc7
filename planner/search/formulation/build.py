"""A staged graph as a choice problem: its nodes with their strategies, and the costs of nodes and edges.

                         strategies                                    costs
op                       NdSbp signatures                              roofline of one rank's part, per step
state                    layouts in which it is stored                 0 (more for a split, by a tie-breaking amount)
delivery of a value      layouts that several readers on a stage       0
                         share
edge                     (layout of the producer, layout needed)       boxing, per step

With a memory limit, a delivery also has a mode (planner.search.zero.DeliveryMode): in place, copied, or, for a parameter, regathered for the
forward and the backward part (ZeRO-3).  The memory that devices hold is stated in planner.search.formulation.memory.

A value that several ops of a stage read is delivered once, in a layout that the search chooses, and each reader may box it further: so one
all-gather serves all readers (OneFlow's proxy node; in TePDist and Alpa every reader pays).  Batch inputs and constants are available in any
layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from planner.cost.routing import ExpertLoad
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, Op, Role
from planner.ir.sbp import NdSbp
from planner.ir.tensor import TensorType
from planner.search.context import Context
from planner.search.formulation.boxing_matrices import BoxingMatrices, Source
from planner.search.formulation.delivery import DeliveryRules
from planner.search.formulation.draft import ProblemDraft
from planner.search.formulation.layout_sets import LayoutSet
from planner.search.formulation.memory import MemoryDemands
from planner.search.formulation.mesh_tools import MeshTools
from planner.search.formulation.op_strategies import OpStrategies
from planner.search.formulation.options import FormulationOptions
from planner.search.formulation.readers import Readers
from planner.search.model import SearchModel
from planner.search.pins import Pin, pinned_inputs, pinned_outputs
from planner.search.strategies import Strategy
from planner.search.zero import DeliveryMode
from planner.solve.per_array import PerArray
from planner.stages import Staged
from planner.stages.sums import widened_terms

__all__ = ["build_model"]

_HELD_BY_EVALUATIONS = frozenset({InputKind.PARAMETER, InputKind.WORKING_COPY, InputKind.BUFFER})


def build_model(
    staged: Staged,
    mesh: tuple[int, ...],
    cluster: Cluster,
    pins: Sequence[Pin],
    micro_batches: int,
    *,
    limit_bytes: float = inf,
    in_flight: Sequence[int] = (),
    tools: MeshTools | None = None,
    zero: int | None = None,
    context: Context | None = None,
    load: ExpertLoad | None = None,
    saved_elsewhere: frozenset[str] | None = None,
) -> SearchModel:
    """The search model of a staged graph on one mesh.

    Args:
        mesh: devices per axis inside each stage.
        micro_batches: per step.
        limit_bytes: limit per device on states, gradients, deliveries and values saved for the backward pass; if infinite, memory is not
            counted.
        in_flight: per stage, the micro-batches that wait for their backward pass; needed if there is a limit.
        tools: of this mesh and cluster, which models that were built before have filled; None: new ones.
        zero: a level of planner.search.zero; None: the search chooses freely.
        context: how attention over a cut sequence is performed; None: the search chooses.
        load: of experts, at whose quantile they are priced (then tools are not used); None: even.
        saved_elsewhere: if the graph is a piece of a model, the values that the backward part of another piece reads.

    Raises:
        UnknownOp: an op has no rule.   Unsupported: the pins, or the way of attention, allow no choice.
    """
    if load is not None:
        tools = MeshTools.at_load(cluster, mesh, staged.graph, load)
    elif tools is None:
        tools = MeshTools.of(cluster, mesh)
    options = FormulationOptions(
        micro_batches=micro_batches,
        pipeline_slots=micro_batches + staged.num_stages - 1,
        limit_bytes=limit_bytes,
        in_flight=tuple(in_flight),
        zero=zero,
        context=context,
        load=load,
        saved_elsewhere=saved_elsewhere,
    )
    return _Builder(staged, mesh, tools, pins, options).build()


class _Builder:
    """Adds one node after another, each with the edges from the nodes that deliver the values it reads.

    sources: value -> its producer or state.   deliveries: (value, stage) -> the node of its delivery.   modes: the modes of that delivery.
    """

    def __init__(
        self,
        staged: Staged,
        mesh: tuple[int, ...],
        tools: MeshTools,
        pins: Sequence[Pin],
        options: FormulationOptions,
    ) -> None:
        self.staged, self.graph, self.costs, self.options = staged, staged.graph, tools.costs, options
        self.whole = LayoutSet((NdSbp.broadcast(len(mesh)),))
        self.pinned = {value: LayoutSet((sbp,)) for value, sbp in pinned_inputs(self.graph, pins, mesh).items()}
        self.inputs = {i.value: i for i in self.graph.inputs}
        self.layout_sets = tools.layout_sets
        self.strategies = OpStrategies(self.graph, tools.strategies, tools.costs, pinned_outputs(self.graph, pins, mesh), options)
        self.matrices = BoxingMatrices(tools)
        self.readers = Readers(staged, is_limited=options.is_limited)
        self.delivery = DeliveryRules(self.graph, self.readers, options)
        self.allows_something: PerArray[bool] = PerArray()
        self.widened_terms = widened_terms(self.graph)
        self.draft = ProblemDraft()
        self.memory = MemoryDemands(self.draft, mesh, options)
        self.ops: dict[str, tuple[int, tuple[Strategy, ...]]] = {}
        self.states: dict[str, tuple[int, LayoutSet]] = {}
        self.sources: dict[str, Source] = {}
        self.deliveries: dict[tuple[str, int], tuple[int, LayoutSet]] = {}
        self.modes: dict[tuple[str, int], tuple[DeliveryMode, ...]] = {}
        self.frozen: dict[tuple[str, int], Source] = {}

    def build(self) -> SearchModel:
        for i in self.graph.inputs:
            if i.value in self.graph.updates:
                self._add_state(i.value)
        for value in self.states:
            self._add_deliveries(value)
        for op in self.graph.ops:
            self._add_op(op)
        for old, new in self.graph.updates.items():
            node, layouts = self.states[old]
            self._add_need(new, self.staged.state_stage(old), node, layouts)
        user = self.draft.add_node("<loss>", np.zeros(1))
        if self.graph.mean_loss in self.sources:
            self._add_need(self.graph.mean_loss, self.sources[self.graph.mean_loss].stage, user, self.whole)
        return SearchModel(
            self.staged,
            self.costs,
            self.draft.problem(self.options.limit_bytes),
            self.ops,
            {value: (node, layouts.layouts) for value, (node, layouts) in self.states.items()},
            {key: (node, layouts.layouts) for key, (node, layouts) in self.deliveries.items()},
            {value: layouts.layouts[0] for value, layouts in self.pinned.items()},
            self.options.micro_batches,
            self.draft.stage_counts(),
            {
                key: tuple(mode for mode in modes for _ in range(len(self.deliveries[key][1]) // len(modes)))
                for key, modes in self.modes.items()
            },
            frozenset(
                key
                for key, modes in self.modes.items()
                if DeliveryMode.COPIED in modes and self.delivery.is_parameter(key[0]) and self.delivery.regathers_per_step(*key) == 1
            ),
            self.matrices.known,
        )

    def _add_state(self, value: str) -> None:
        logical, entry, stage = self.graph.values[value], self.inputs[value], self.staged.state_stage(value)
        split_from_level = {InputKind.OPTIMIZER_STATE: 1, InputKind.PARAMETER: 3, InputKind.WORKING_COPY: 3}.get(entry.kind)
        if value in self.graph.masters:
            split_from_level = 1
        is_split = self.options.zero is not None and split_from_level is not None and self.options.zero >= split_from_level
        layouts, tie_s = self.layout_sets.storable(logical, only_most_split=is_split)
        if value in self.pinned:
            layouts, tie_s = self.pinned[value], np.zeros(1)
        node = self.draft.add_node(f"state {entry.name}", tie_s)
        self.states[value] = (node, layouts)
        self.memory.add_state(node, layouts, logical, stage)
        count = self.options.pipeline_slots if entry.kind is InputKind.BUFFER else 1
        self.sources[value] = Source(node, layouts, stage, count, bucketed=True)

    def _add_op(self, op: Op) -> None:
        stage, options, strategies = self.staged.stage[op.id], self.options, self.strategies.of(op)
        count = options.pipeline_slots if op.role.per_micro_batch else 1
        node = self.draft.add_node(op.id, self.strategies.cost_s(op, stage), stage, count)
        self.ops[op.id] = (node, strategies.strategies)
        for value in dict.fromkeys(op.inputs):
            self._add_need(value, stage, node, self.layout_sets.operand(strategies, op.inputs.index(value)), op)
        for place, made in enumerate(op.outputs):
            if made is None:
                continue
            logical, layouts = self.graph.values[made], self.layout_sets.result(strategies, place)
            made_count = options.pipeline_slots if op.role in (Role.FORWARD, Role.BACKWARD) else 1
            self.sources[made] = Source(node, layouts, stage, made_count, bucketed=op.role in (Role.ACCUMULATE, Role.UPDATE))
            self._add_deliveries(made)
            if (made, stage) in self.readers.saved:
                blocks = 1 if (made, stage) in self.deliveries else options.in_flight[stage]
                self.memory.add_saved(node, layouts, logical, stage, blocks)
                if (made, stage) not in self.deliveries:
                    self.memory.add_still_saved(node, layouts, logical, stage, blocks - 1)
            elif options.saved_elsewhere is not None and made in options.saved_elsewhere:
                self.memory.add_saved(node, self.layout_sets.reduced(layouts, logical), logical, stage, options.in_flight[stage])
            elif op.role is Role.ACCUMULATE and options.micro_batches > 1:
                self.memory.add_gradient(node, layouts, logical, stage)

    def _add_deliveries(self, value: str) -> None:
        """Add a delivery node on every stage on which the value has several readers or is saved."""
        source = self.sources[value]
        for stage in self.readers.stages(value):
            ops, replaced = self.readers.ops(value, stage), self.readers.replaced(value, stage)
            if len(ops) + len(replaced) < 2 and (value, stage) not in self.readers.saved:
                continue
            needs = [self.layout_sets.operand(self.strategies.of(op), op.inputs.index(value)) for op in ops]
            needs += [self.states[state][1] for state in replaced]
            logical, modes = self.graph.values[value], self.delivery.modes(value, stage, source.stage)
            layouts = self.layout_sets.repeated(self.layout_sets.union((source.layouts, *needs)), len(modes))
            node = self.draft.add_free_node(f"{value} for stage {stage}", len(layouts))
            self._connect(source, stage, node, layouts, logical, modes=modes, regathers=self.delivery.regathers_per_step(value, stage))
            self.memory.add_saved(node, layouts, logical, stage, *self.delivery.saved_blocks(value, stage, source.stage, modes))
            self.memory.add_still_saved(node, layouts, logical, stage, *self.delivery.still_saved_blocks(value, stage, source.stage, modes))
            self.deliveries[value, stage] = (node, layouts)
            self.modes[value, stage] = modes

    def _add_need(self, value: str, stage: int, node: int, needs: LayoutSet, reader: Op | None = None) -> None:
        """Add the edge to ``node`` from the node that delivers a value.   reader: None: it is a state or the user."""
        role = None if reader is None else reader.role
        logical, source = self.graph.values[value], self.sources.get(value)
        if source is None:
            if value in self.pinned:
                fixed = self.draft.add_node(f"pinned {self.inputs[value].name}", np.zeros(1))
                pinned = Source(fixed, self.pinned[value], stage, self.options.pipeline_slots, bucketed=False)
                self._connect(pinned, stage, node, needs, logical)
            elif (frozen := self._frozen_source(value, stage)) is not None:
                self._connect(frozen, stage, node, needs, logical, only_local=(True,))
            return
        only_local: tuple[bool, ...] = (False,)
        if (value, stage) in self.deliveries:
            delivery, layouts = self.deliveries[value, stage]
            source = Source(delivery, layouts, stage, source.count, source.bucketed)
            only_local = tuple(self.delivery.is_final(value, stage, mode, role) for mode in self.modes[value, stage])
        elif self.delivery.is_final_update(value, role):
            only_local = (True,)
        if reader is not None and reader.id in self.widened_terms and source.stage == stage:
            only_local = (True,)  # gradients are reduced in the format in which they are accumulated
        if role is Role.ACCUMULATE and self.options.micro_batches > 1:
            source = replace(source, bucketed=True)  # a block's gradients travel together
        self._connect(source, stage, node, needs, logical, only_local=only_local)

    def _frozen_source(self, value: str, stage: int) -> Source | None:
        """The node of a parameter of an evaluation: on each stage that reads it, it lies in one layout, which costs memory and no time.

        None: memory is not counted, or the value is none.
        """
        kind = self.inputs[value].kind
        if not self.options.is_limited or self.graph.gradients or kind not in _HELD_BY_EVALUATIONS:
            return None
        if (value, stage) not in self.frozen:
            logical, ops = self.graph.values[value], self.readers.ops(value, stage)
            layouts = self.layout_sets.union(tuple(self.layout_sets.operand(self.strategies.of(op), op.inputs.index(value)) for op in ops))
            node = self.draft.add_free_node(f"{self.inputs[value].name} on stage {stage}", len(layouts))
            self.memory.add_state(node, layouts, logical, stage)
            self.frozen[value, stage] = Source(node, layouts, stage, 1, bucketed=True)
        return self.frozen[value, stage]

    def _connect(
        self,
        source: Source,
        stage: int,
        node: int,
        needs: LayoutSet,
        logical: TensorType,
        *,
        modes: tuple[DeliveryMode, ...] = (DeliveryMode.ANY,),
        regathers: int = 0,
        only_local: tuple[bool, ...] = (False,),
    ) -> None:
        """An edge from a source to a node on ``stage``; modes and only_local as in BoxingMatrices.boxing.   regathers: per step."""
        matrix = self.matrices.boxing(source, needs, logical, stage=stage, modes=modes, only_local=only_local)
        if DeliveryMode.REGATHERED in modes:  # paid in every micro-batch, so by an edge of its own
            regathering = self.matrices.regathering(source, needs, logical, modes, regathers)
            self.draft.add_edge(source.node, node, regathering, stage, self.options.pipeline_slots)
        if not self.allows_something.of(matrix, lambda given: bool(np.isfinite(given).any())):
            names = self.draft.names
            raise Unsupported(
                f"no legal combination: {names[source.node]} gives {'|'.join(map(str, dict.fromkeys(source.layouts.layouts)))}, "
                f"{names[node]} needs {'|'.join(map(str, dict.fromkeys(needs.layouts)))}; "
                f"the pins contradict each other or cut something that must stay whole; remove a pin or choose another mesh"
            )
        self.draft.add_edge(source.node, node, matrix, stage, source.count)
