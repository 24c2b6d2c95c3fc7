"""What differs between two Plans: cluster, options, search, layouts, op signatures, collectives, quotas, memory.

Numbers in names stand for layers, so rows that differ in them alone are one row:  h.0.mlp.c_fc.weight, h.1.mlp.c_fc.weight -> h.*.mlp.c_fc.weight
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.cost import AnalyticCost
from planner.ir.collector import collector_paused
from planner.ir.errors import RegistaError
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Boxing, Plan
from planner.ir.text import encode
from planner.parallelism.memory import SearchMemory
from planner.search.model import SearchModel
from planner.solve.problem import Ints
from regista.analysis.budget import Use, holdings, logical_bytes
from regista.analysis.planned import retrace
from regista.programs import planned_program
from regista.trust.constants import search_cluster

__all__ = ["Change", "Difference", "Side", "Traffic", "diff", "side_of", "signatures_of"]

Value = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """what is ``a`` in the first plan and ``b`` in the second (None: it is not there); count: so many names that ``what`` stands for."""

    what: str
    a: Value
    b: Value
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Communication of one kind in a step: acts, bytes of the logical tensors moved, and seconds at the cluster's prices."""

    acts: int = 0
    size_bytes: int = 0
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Only what differs is listed.  traffic: 'collective, axis' -> (first, second).   note: what could not be compared, and why."""

    a: Plan
    b: Plan
    facts: tuple[Change, ...]
    layouts: tuple[Change, ...]
    ops: tuple[Change, ...]
    traffic: Mapping[str, tuple[Traffic, Traffic]]
    quotas: tuple[Change, ...]
    memory: tuple[Change, ...]
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.facts or self.layouts or self.ops or self.traffic or self.quotas or self.memory)


@dataclass(slots=True)
class _Pairs:
    """name -> its value in the first and in the second plan."""

    values: dict[str, tuple[Value, Value]] = field(default_factory=dict)

    def add(self, first: Mapping[str, Value], second: Mapping[str, Value]) -> None:
        for name in dict.fromkeys((*first, *second)):
            if first.get(name) != second.get(name):
                self.values[name] = first.get(name), second.get(name)

    def changes(self) -> tuple[Change, ...]:
        return tuple(Change(what=name, a=a, b=b) for name, (a, b) in self.values.items())

    def folded(self) -> tuple[Change, ...]:
        """Names that differ in numbers alone and have the same values become one row."""
        groups: dict[tuple[str, Value, Value], list[str]] = defaultdict(list)
        for name, (a, b) in self.values.items():
            groups[fold(name), a, b].append(name)
        return tuple(
            Change(what=pattern if len(names) > 1 else names[0], a=a, b=b, count=len(names)) for (pattern, a, b), names in groups.items()
        )


def fold(name: str) -> str:
    """Whole numbers between dots become a star.

    >>> fold("h.11.mlp.c_fc.weight")
    'h.*.mlp.c_fc.weight'
    """
    return re.sub(r"(?<![^. ])[0-9]+(?![^. ])", "*", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a comparison reads of one of its Plans."""

    facts: Mapping[str, Value]
    layouts: Mapping[str, Value]
    memory: Mapping[str, Value]
    traffic: Mapping[str, Traffic]


def side_of(plan: Plan, live_bytes: Mapping[int, int] | None = None) -> Side:
    """Work out a side, for a caller who has the first Plan before the second.   live_bytes: of its dry run, per rank; None: it is played."""
    return Side(facts=_facts(plan), layouts=_layouts(plan), memory=_memory(plan, live_bytes), traffic=_traffic(plan))


@collector_paused()
def diff(
    a: Plan,
    b: Plan,
    graph: LogicalGraph | None = None,
    *,
    side: Side | None = None,
    signatures: Mapping[str, str] | None = None,
    memory: SearchMemory | None = None,
) -> Difference:
    """Compare two Plans.

    Args:
        graph: the step that both were made from, for programs that no file holds; None: trace the programs that they name.
        side, signatures: of the first one (side_of, signatures_of); None: they are worked out.
        memory: what searches of the program have worked out (regista.analysis.planned.retrace).
    """
    kept = SearchMemory() if memory is None else memory
    known = kept.decided(b, search_cluster(b.cluster, b.options.get("robust", "")))
    mine, other = side_of(a) if side is None else side, side_of(b, None if known is None else known.live_bytes)
    facts, layouts, quotas, uses = _Pairs(), _Pairs(), _Pairs(), _Pairs()
    facts.add(mine.facts, other.facts)
    layouts.add(mine.layouts, other.layouts)
    quotas.add(_quotas(a, b), _quotas(b, a))
    uses.add(mine.memory, other.memory)
    sent_by_a, sent_by_b = mine.traffic, other.traffic
    ops, note = ((), "") if a == b else _ops(a, b, graph, signatures, kept)
    return Difference(
        a=a,
        b=b,
        facts=facts.changes(),
        layouts=layouts.folded(),
        ops=ops,
        traffic={
            kind: (sent_by_a.get(kind, Traffic()), sent_by_b.get(kind, Traffic()))
            for kind in sorted({*sent_by_a, *sent_by_b})
            if sent_by_a.get(kind) != sent_by_b.get(kind)
        },
        quotas=quotas.folded(),
        memory=uses.changes(),
        note=note,
    )


def _facts(plan: Plan) -> dict[str, Value]:
    facts: dict[str, Value] = {"model": plan.model, "batch size": plan.batch_size, "micro-batches": plan.micro_batches}
    facts |= {f"option {name}": value for name, value in plan.options.items()}
    facts |= _flat("cluster", encode(plan.cluster))
    facts |= {f"stage {p.id}": f"mesh {'x'.join(map(str, p.mesh))} on ranks {p.ranks[0]} .. {p.ranks[-1]}" for p in plan.placements}
    facts |= {
        "search method": plan.search.method,
        "objective_s": plan.search.objective_s,
        "lower_bound_s": plan.search.lower_bound_s,
        "tasks": len(plan.tasks),
        "regsts": len(plan.regsts),
    }
    return facts


def _flat(prefix: str, data: object) -> dict[str, Value]:
    """Nested data with dotted names."""
    if isinstance(data, dict):
        return {name: value for key, inner in data.items() if key != "is" for name, value in _flat(f"{prefix}.{key}", inner).items()}
    if isinstance(data, list):
        return {name: value for place, inner in enumerate(data) for name, value in _flat(f"{prefix}.{place}", inner).items()}
    return {prefix: data if isinstance(data, str | int | float) else None}


def _layouts(plan: Plan) -> dict[str, Value]:
    layouts_of: dict[str, list[str]] = defaultdict(list)
    for state in plan.states:
        regst = plan.regst[state.regst]
        where = f" on {regst.placement}" if len(plan.placements) > 1 else ""
        layouts_of[state.name].append(f"{regst.tensors[state.index].sbp}{where}")
    return {name: ", ".join(ways) for name, ways in layouts_of.items()}


def _quotas(plan: Plan, other: Plan) -> dict[str, int]:
    """Of the Regsts that both have; those of one alone follow from the layouts."""
    return {regst.id: regst.quota for regst in plan.regsts if regst.id in other.regst}


def _memory(plan: Plan, live_bytes: Mapping[int, int] | None) -> dict[str, Value]:
    fullest = holdings(plan, live_bytes)[0]
    return {**{use.value: fullest.uses[use] for use in Use}, "total": fullest.total_bytes, "device": fullest.device_bytes}


def _traffic(plan: Plan) -> dict[str, Traffic]:
    act_s = AnalyticCost(plan.cluster).folded_s(plan)
    acts: Counter[str] = Counter()
    size_bytes: Counter[str] = Counter()
    time_s: dict[str, float] = defaultdict(float)
    for task in plan.tasks:
        if task.kind.is_communication:
            kind = f"{task.body.collective.value}, axis {task.body.axis}" if isinstance(task.body, Boxing) else task.kind.value
            acts[kind] += task.acts
            size_bytes[kind] += task.acts * logical_bytes(plan, task)
            time_s[kind] += task.acts * act_s(task)
    return {kind: Traffic(acts=acts[kind], size_bytes=size_bytes[kind], time_s=time_s[kind]) for kind in acts}


def _ops(
    a: Plan, b: Plan, graph: LogicalGraph | None, mine: Mapping[str, str] | None, memory: SearchMemory
) -> tuple[tuple[Change, ...], str]:
    """Signatures of ops, which only the searches themselves tell: both are stated anew.   mine: those of the first one, where they are known."""
    if a.options.get("graph") != b.options.get("graph"):
        return (), "the plans are of different steps, so their ops are not compared"
    try:
        step = graph if graph is not None else planned_program(a).graph(a.micro_batches)
        if mine is None:
            first = retrace(a, step, memory)
            mine = signatures_of(first.model, first.choice)
        second = retrace(b, step, memory)
    except RegistaError as error:
        return (), f"op signatures are not compared: {error}"
    theirs = signatures_of(second.model, second.choice)
    rows: Counter[tuple[str, str, str]] = Counter()
    for op in second.model.staged.graph.ops:
        if op.id in mine and mine[op.id] != theirs[op.id]:
            rows[f"{op.role.value} {fold(op.module) or '<root>'} {op.target}", mine[op.id], theirs[op.id]] += 1
    return tuple(Change(what=what, a=x, b=y, count=count) for (what, x, y), count in rows.items()), ""


def signatures_of(model: SearchModel, choice: Ints) -> dict[str, str]:
    """Op id -> the layouts of its operands and of its results."""
    texts: dict[tuple[int, int], str] = {}  # of a strategy of a menu, which many ops have in common
    taken = {}
    for op_id, (node, strategies) in model.ops.items():
        number = int(choice[node])
        key = id(strategies), number
        if key not in texts:
            strategy = strategies[number]
            texts[key] = f"{_list(strategy.inputs)} -> {_list(strategy.outputs)}"
        taken[op_id] = texts[key]
    return taken


def _list(sbps: tuple[object, ...]) -> str:
    return " ".join(f"[{sbp}]" for sbp in sbps) or "[]"
