"""Hypothesis strategies for random Plans: DAGs on one rank with quotas, rates, shared streams, fixed orders and state; stages of several ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import gcd

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from stories import Story, TableCost, tensor

from planner.ir.actors.liveness import play
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock
from planner.ir.plan import Placement, Plan, RegstKind, TaskKind
from planner.ir.sbp import NdSbp


@st.composite
def dags(draw: st.DrawFn, *, max_tasks: int = 6, same_rate: bool = False) -> Plan:
    """A DAG of up to ``max_tasks`` tasks; it may dead-lock (small quotas and unequal rates)."""
    count = draw(st.integers(2, max_tasks))
    acts = [4] * count if same_rate else draw(st.lists(st.sampled_from([1, 2, 4]), min_size=count, max_size=count))
    streams = draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))
    story = Story()
    consumes: dict[int, dict[str, int]] = defaultdict(dict)
    produces: dict[int, dict[str, int]] = defaultdict(dict)
    for i in range(count):
        readers = draw(st.sets(st.integers(i + 1, count - 1), max_size=3)) if i + 1 < count else set()
        if not readers and i + 1 < count and i > 0:
            continue
        blocks = gcd(acts[i], *(acts[j] for j in readers))
        story.regst(f"r{i}", f"t{i}", draw(st.integers(1, 3)), draw(st.sampled_from([RegstKind.DATA, RegstKind.DATA, RegstKind.CONTROL])))
        produces[i][f"r{i}"] = acts[i] // blocks
        for j in readers:
            consumes[j][f"r{i}"] = acts[j] // blocks
    if draw(st.booleans()):  # a parameter: read by the first task, replaced by the last
        story.regst("w", f"t{count - 1}", kind=RegstKind.STATE)
        consumes[0]["w"] = acts[0]
        produces[count - 1]["w"] = acts[count - 1]
    story.regst("loss", f"t{count - 1}", 2)
    produces[count - 1]["loss"] = 1
    for i in range(count):
        kind = TaskKind.SOURCE if i == 0 else draw(st.sampled_from([TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.FETCH]))
        priority = draw(st.integers(0, 2))
        story.task(f"t{i}", consumes[i], produces[i], acts=acts[i], kind=kind, stream=f"s{streams[i]}", priority=priority)
    return story.freeze(micro_batches=4)


@st.composite
def prices(draw: st.DrawFn, plan: Plan, *, zero: bool = True) -> TableCost:
    """Durations in binary fractions, so that sums are exact; zero durations among them."""
    quarter = st.integers(0 if zero else 1, 12).map(lambda n: n / 4)
    return TableCost({task.id: draw(quarter) for task in plan.tasks})


def is_live(plan: Plan) -> bool:
    try:
        play(plan)
    except DeadLock:
        return False
    return True


@st.composite
def live_dags(draw: st.DrawFn, *, fixed_order: bool = False, same_rate: bool = False) -> Plan:
    """A live DAG; with ``fixed_order`` each stream follows the order in which one step of the token game fires."""
    plan = draw(dags(same_rate=same_rate))
    assume(is_live(plan))
    if not fixed_order:
        return plan
    fired: dict[str, list[str]] = defaultdict(list)
    for firing in play(plan):
        fired[plan.task[firing.task].stream].append(firing.task)
    return replace(plan, streams=tuple(replace(s, order=tuple(fired[s.id])) for s in plan.streams))


@st.composite
def meshed(draw: st.DrawFn) -> Plan:
    """Stages of 1 to 4 ranks, a random chain with extra edges in each, transfers between them in random layouts, collectives, state, rates."""
    story = Story()
    story.placements.clear()
    widths = draw(st.lists(st.sampled_from([(1,), (2,), (4,), (2, 2)]), min_size=1, max_size=3))
    first = 0
    for number, mesh in enumerate(widths):
        size = int(np.prod(mesh))
        story.placements.append(Placement(id=f"p{number}", ranks=tuple(range(first, first + size)), mesh=mesh))
        first += size
    acts = draw(st.sampled_from([2, 4]))
    arriving = ""
    for number, mesh in enumerate(widths):
        at = f"p{number}"
        before: list[str] = [arriving] if arriving else []
        for i in range(draw(st.integers(1, 3))):
            name = f"t{number}.{i}"
            reads = {before[-1]: 1} if before else {}
            if len(before) > 1 and draw(st.booleans()):
                reads[draw(st.sampled_from(before[:-1]))] = 1
            story.regst(f"{name}.out", name, draw(st.integers(1, 3)), placement=at)
            kind = TaskKind.SOURCE if not reads else draw(st.sampled_from([TaskKind.FORWARD, TaskKind.BACKWARD]))
            made = {f"{name}.out": 1}
            if i == 0:
                story.regst(f"w{number}", f"update{number}", kind=RegstKind.STATE, placement=at)
                story.regst(f"g{number}", name, 1, placement=at)
                reads[f"w{number}"], made[f"g{number}"] = acts, acts
                if kind is TaskKind.SOURCE:
                    kind = TaskKind.FORWARD
            lane = draw(st.sampled_from(["compute", "other"]))
            workspace_bytes = draw(st.sampled_from([0, 300])) if kind.is_compute else 0
            story.task(
                name, reads, made, acts=acts, kind=kind, placement=at, stream=f"{lane}{number}", priority=draw(st.integers(0, 2)),
                workspace_bytes=workspace_bytes,
            )  # fmt: skip
            before.append(f"{name}.out")
        story.regst(f"sum{number}", f"reduce{number}", placement=at)
        story.task(f"reduce{number}", [f"g{number}"], [f"sum{number}"], collective=draw(st.sampled_from(list(Collective))), placement=at)
        story.task(f"update{number}", [f"sum{number}"], [f"w{number}"], kind=TaskKind.UPDATE, placement=at, stream=f"compute{number}")
        story.order(f"reduce{number}", f"reduce{number}")
        if number + 1 < len(widths):
            arriving = f"in{number + 1}"
            story.regst(arriving, f"send{number}", draw(st.integers(1, 3)), placement=f"p{number + 1}")
            story.task(f"send{number}", [before[-1]], [arriving], acts=acts, kind=TaskKind.TRANSFER, placement=at)
            for regst, axes in ((before[-1], len(mesh)), (arriving, len(widths[number + 1]))):
                sbp = NdSbp.parse(",".join(draw(st.lists(st.sampled_from(["B", "S(0)"]), min_size=axes, max_size=axes))))
                where = next(i for i, r in enumerate(story.regsts) if r.id == regst)
                story.regsts[where] = replace(story.regsts[where], tensors=(tensor(regst, axes, sbp),))
    return story.freeze(micro_batches=acts)
