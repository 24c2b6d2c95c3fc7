"""From a Plan back to the choice problem that it answers: options, graph, model, and the choice that was taken.

A Plan holds no logical graph, so the program that it names is traced again and its graph's content id is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from planner.cost.routing import ExpertLoad
from planner.ir.cluster import Cluster
from planner.ir.errors import Mismatch, Unsupported
from planner.ir.graph import LogicalGraph, Op
from planner.ir.plan import Boxing, Fragment, Plan, RegstKind
from planner.ir.sbp import NdSbp
from planner.lower.names import layout_of, placement_id
from planner.parallelism.asked_quotas import quotas_of_text
from planner.parallelism.make import PlanOptions
from planner.parallelism.memory import SearchMemory
from planner.parallelism.one_shape import staged_once
from planner.schedule import schedule_of
from planner.search import Method, build_model
from planner.search.context import context_of
from planner.search.model import SearchModel
from planner.search.pins import parse_pins
from planner.search.strategies import Strategy, relabel, without_names
from planner.search.zero import DeliveryMode
from planner.solve import solve_exactly
from planner.solve.problem import Ints
from planner.stages import Staged
from planner.stages.recompute import recompute_of
from regista.programs import planned_program
from regista.trust.constants import search_cluster

__all__ = ["SAME", "Retraced", "decisions", "options_of", "retrace", "step_of"]

SAME = 1e-9
"""Relative difference up to which two objectives are one (the solver's own is 1e-10)."""


def options_of(plan: Plan) -> PlanOptions:
    """The options that the Plan records, with the shape (stages, mesh, micro-batches) and the method that it has.

    Raises:
        Unsupported: its stages have different meshes.   InvalidPlan: it names no schedule that there is.
    """
    meshes = {placement.mesh for placement in plan.placements}
    if len(meshes) != 1:
        raise Unsupported(f"plan {plan.plan_id} has stages of meshes {sorted(meshes)}; only plans of one mesh are searched anew")
    recorded = plan.options
    methods = {method.value: method for method in Method}
    return PlanOptions(
        stages=len(plan.placements),
        mesh=meshes.pop(),
        micro_batches=plan.micro_batches,
        cuts=_parts(recorded.get("cuts", ""), ","),
        balance=float(recorded["balance"]) if "balance" in recorded else None,
        pins=_parts(recorded.get("pins", ""), ";"),
        schedule=schedule_of(plan),
        bucket_bytes=int(recorded["bucket_bytes"]) if "bucket_bytes" in recorded else PlanOptions().bucket_bytes,
        quotas=quotas_of_text(recorded.get("quotas", "")),
        recompute=recompute_of(recorded.get("recompute") or "auto"),
        zero=int(recorded["zero"]) if "zero" in recorded else None,
        context=context_of(recorded.get("context")),
        load=ExpertLoad.recorded(recorded),
        interleave=int(recorded["interleave"]) if "interleave" in recorded else 1,
        hold=int(recorded["hold"]) if "hold" in recorded else None,
        order=recorded.get("order", ""),
        mode=plan.mode,
        method=methods.get(plan.search.method.partition(",")[0], Method.EXACT),
    )


def _parts(text: str, separator: str) -> tuple[str, ...]:
    return tuple(text.split(separator)) if text else ()


@dataclass(frozen=True, slots=True, eq=False)
class Retraced:
    """plan, and what it was made from.  model: the choice problem on the Plan's cluster.  choice: what the Plan takes (a strategy per node).

    is_limited: whether the ways of delivering a value (planner.search.zero.DeliveryMode) are choices, as in a search within a memory limit.
    memory: what searches of the program have worked out.
    """

    plan: Plan
    options: PlanOptions
    graph: LogicalGraph
    model: SearchModel
    choice: Ints
    is_limited: bool
    memory: SearchMemory

    @property
    def searched_s(self) -> float:
        """What the search minimises, of the Plan's choice: the mean of the stages, seconds per step (of one stage: the step's)."""
        return self.model.problem.objective(self.choice) / self.model.staged.num_stages

    @property
    def is_whole(self) -> bool:
        """Whether the choice costs what the Plan says, so that nothing of it was lost on the way into the Plan."""
        told_s = self.plan.search.objective_s
        return abs(self.model.step_s(self.choice) - told_s) <= SAME * max(told_s, 1e-12)

    @property
    def is_optimal(self) -> bool:
        """Whether the Plan's own lower bound proves that no choice is cheaper."""
        return self.is_whole and self.plan.search.lower_bound_s >= self.searched_s * (1 - SAME)

    def model_on(self, cluster: Cluster) -> SearchModel:
        """The same nodes and strategies with the prices of another cluster of as many devices."""
        return _model(self.plan, self.model.staged, self.options, cluster, self.memory, is_limited=self.is_limited)


def retrace(plan: Plan, graph: LogicalGraph | None = None, memory: SearchMemory | None = None) -> Retraced:
    """Trace the program that the Plan names and state its search anew.

    Args:
        graph: its step, for a program that no file holds.
        memory: what searches of the program have worked out.  The choice of a Plan that one of them made is known; of another one it is read
            out of the Plan, which does not show the layouts of values that live and die inside a fragment: they are the cheapest then.

    Raises:
        Mismatch, RegistaError: see step_of; Mismatch also if its layouts are none of this version's.
    """
    options = options_of(plan)
    kept = SearchMemory() if memory is None else memory
    graph = step_of(plan, graph, kept)
    searched = search_cluster(plan.cluster, plan.options.get("robust", ""))
    known = kept.decided(plan, searched)
    if known is not None:
        taken, problem = known.taken, known.taken.model.problem
        model = replace(taken.model, problem=problem.without_limit())
        return Retraced(plan, options, graph, model, taken.choice, bool(problem.demands), kept)
    is_limited = bool(_gathered_again(plan)) and options.zero is None  # gathering again (ZeRO-3) is a choice of its search
    model = _model(plan, staged_once(graph, options, searched, kept), options, searched, kept, is_limited=is_limited)
    return Retraced(plan, options, graph, model, decisions(plan, model), is_limited, kept)


def step_of(plan: Plan, graph: LogicalGraph | None, memory: SearchMemory) -> LogicalGraph:
    """The step that the Plan was made of.   graph: it, for a program that no file holds; None: the program that the Plan names is traced.

    Raises:
        Mismatch: no file holds the program, or it is another one by now.   RegistaError: see planned_program.
    """
    step = planned_program(plan).graph(plan.micro_batches) if graph is None else graph
    traced_id, wanted = memory.graph_id(step), plan.options.get("graph")
    if traced_id != wanted:
        raise Mismatch(
            f"{plan.model} is graph {traced_id} now, plan {plan.plan_id} was made of graph {wanted}: the ops, the optimizer's numbers or torch's "
            f"version have changed; plan it anew"
        )
    return step


def _model(plan: Plan, staged: Staged, options: PlanOptions, cluster: Cluster, memory: SearchMemory, *, is_limited: bool) -> SearchModel:
    """The choice problem without its limit."""
    pins, mesh, stages = parse_pins(options.pins), plan.placements[0].mesh, len(plan.placements)
    limit_bytes = 1e30 if is_limited else inf
    model = build_model(
        staged,
        mesh,
        cluster,
        pins,
        plan.micro_batches,
        limit_bytes=limit_bytes,
        in_flight=[1] * stages,
        zero=options.zero,
        context=options.context,
        load=options.load,
        tools=memory.tools(cluster, mesh),
    )
    return replace(model, problem=model.problem.without_limit())


def _gathered_again(plan: Plan) -> frozenset[tuple[str, int]]:
    """(value, stage) of state that reaches one layout more than once per step."""
    states = {regst.id for regst in plan.regsts if regst.kind is RegstKind.STATE}
    acts: Counter[tuple[str, str, str]] = Counter()
    for task in plan.tasks:
        if isinstance(task.body, Boxing):
            for read, made in zip(task.reads, task.writes, strict=True):
                if read.regst in states:
                    acts[read.name, made.name, task.placement] += task.acts
    stage = {placement.id: number for number, placement in enumerate(plan.placements)}
    return frozenset((value, stage[placement]) for (value, _, placement), times in acts.items() if times > 1)


def decisions(plan: Plan, model: SearchModel) -> Ints:
    """The cheapest choice that agrees with everything the Plan shows.

    The Plan shows the layout of every state, of what lies in Regsts and of what a fragment boxes (planner.lower.names.layout_of), and an op's
    literals on a part.  What is left open (a value that lives and dies inside a fragment) follows by solving.

    Args:
        model: of the Plan's program and shape, on its cluster or another one.

    Raises:
        Mismatch: it has no such choice.
    """
    shown = {(op.id, task.placement): op for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops}
    layouts: dict[str, NdSbp] = {t.name: t.sbp for regst in plan.regsts for t in regst.tensors}
    allowed: dict[int, Ints] = {}
    names = {entry.value: entry.name for entry in model.staged.graph.inputs}
    stored = {state.name: plan.regst[state.regst].tensors[state.index].sbp for state in plan.states}
    for value, (node, stores) in model.states.items():
        allowed[node] = _all_or_those([sbp == stored.get(names[value]) for sbp in stores])
        layouts[value] = stored.get(names[value], stores[0])
    again = _gathered_again(plan)
    agreeing: dict[tuple[object, ...], Ints] = {}
    """Of ops that are alike up to names; the model holds all strategies, so no others come to lie at their addresses."""
    for key, held in model.delivery_modes.items():
        if {DeliveryMode.REGATHERED, DeliveryMode.COPIED} <= set(held) and key not in model.forward_only:  # otherwise the layouts say it
            allowed[model.deliveries[key][0]] = _all_or_those([(way is DeliveryMode.REGATHERED) == (key in again) for way in held])
    for op in model.staged.graph.ops:
        node, strategies = model.ops[op.id]
        placed = shown.get((op.id, placement_id(model.staged.stage[op.id])))
        if placed is None or (len(placed.inputs), len(placed.outputs)) != (len(op.inputs), len(op.outputs)):
            raise Mismatch(
                f"plan {plan.plan_id} has no such {op.where()} on stage {model.staged.stage[op.id]}; it was made by another version, plan anew"
            )
        read = tuple([layouts[name] if name in layouts else layout_of(name) for name in placed.inputs])
        written = tuple([layouts.get(value) if value is not None else None for value in op.outputs])
        alike = (id(strategies), read, written, _literals(placed), _pattern(op.inputs), _pattern(placed.inputs))
        if alike not in agreeing:
            agreeing[alike] = _all_or_those(_agreeing(strategies, op, placed, read, written))
        allowed[node] = agreeing[alike]
        for place, made in enumerate(op.outputs):
            ways = {strategies[s].outputs[place] for s in allowed[node]}
            if made is not None and len(ways) == 1:
                layouts.setdefault(made, ways.pop())
    try:
        return solve_exactly(model.problem.without_limit().allowing(allowed)).choice
    except Unsupported as error:
        raise Mismatch(
            f"the layouts in plan {plan.plan_id} do not fit together on its cluster; it was made by another version, plan anew"
        ) from error


def _all_or_those(agree: list[bool]) -> Ints:
    return np.flatnonzero(agree) if any(agree) else np.arange(len(agree))


def _pattern(names: Sequence[str]) -> tuple[int, ...]:
    """For each name, the index of its first occurrence: equal for two lists that repeat names at the same places."""
    return tuple([names.index(name) for name in names])


def _literals(op: Op) -> object:
    """An op's arguments with values by their places among its inputs."""
    places = {name: place for place, name in reversed(list(enumerate(op.inputs)))}
    return without_names((op.args, op.kwargs), places)


def _agreeing(strategies: Sequence[Strategy], op: Op, shown: Op, read: Sequence[NdSbp | None], made: Sequence[NdSbp | None]) -> list[bool]:
    """Of each strategy, whether the layouts that are known and the literals that the Plan shows are its own."""
    names = dict(zip(op.inputs, shown.inputs, strict=True))

    def agrees(strategy: Strategy) -> bool:
        known = zip((*read, *made), (*strategy.inputs, *strategy.outputs), strict=True)
        if any(layout is not None and layout != sbp for layout, sbp in known):
            return False
        local = relabel(strategy.local, op).op.renamed(names)
        return (local.args, local.kwargs) == (shown.args, shown.kwargs)

    return [agrees(strategy) for strategy in strategies]
