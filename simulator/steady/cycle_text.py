"""A cycle of waits as one line of text, in the user's names.

    stage 1 backward -> link 1->0 -> stage 0 backward -> quota 2 of `h.11.out` -> stage 0 forward -> link 0->1 -> stage 1 forward

After each act stands why the next one waits for it, unless it waits for data only.  A stretch that repeats stands once: ``(a -> b) x 3``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.ir.plan import Boxing, Plan, RegstKind, Task, TaskKind
from simulator.steady.graph import ArcKind, MarkedGraph

__all__ = ["fold_repeats", "task_name", "describe_cycle"]

_STAGE = re.compile(r"^(?:s|stage)(\d+)$")
LONGEST_FOLDED = 100
"""Longer stretches are not folded where they repeat."""
LONGEST_ROTATED = 400
"""The text of a longer cycle begins at its first arc; that of others where it is shortest."""


def describe_cycle(graph: MarkedGraph, cycle: Sequence[int], *, acts: bool = False) -> str:
    """The arcs of a cycle, in the direction of time.

    Args:
        acts: give every act its number in the step, from 0, and fold nothing; a dead-lock is about single acts.
    """
    names: dict[str, str] = {}
    units = [_unit_text(graph, arc, acts, names) for arc in cycle]
    if acts:
        return " -> ".join(units)
    rotations = [units[i:] + units[:i] for i in (range(len(units)) if len(units) <= LONGEST_ROTATED else range(1))]
    return min((" -> ".join(fold_repeats(rotation)) for rotation in rotations), key=len, default="")


def task_name(plan: Plan, task: Task) -> str:
    """A task by its kind and placement; with its id where several tasks have both in common."""
    short = _short(plan, task)
    alike = (o for o in plan.tasks if o.kind is task.kind and o.placement == task.placement and o.id != task.id)
    return f"{short} {task.id}" if any(_short(plan, other) == short for other in alike) else short


def fold_repeats(words: Sequence[str]) -> list[str]:
    """The words with each stretch that repeats at once written one time, with its count.

    >>> fold_repeats(["F", "B", "F", "B", "F", "B", "U"])
    ['(F -> B) x 3', 'U']
    >>> fold_repeats(["F", "F", "B"])
    ['F x 2', 'B']
    """
    folded: list[str] = []
    i = 0
    while i < len(words):
        best, times = 1, 1
        for width in range(1, min(LONGEST_FOLDED, (len(words) - i) // 2) + 1):
            if words[i + width] != words[i]:
                continue
            count = 1
            while words[i + count * width : i + (count + 1) * width] == words[i : i + width]:
                count += 1
            if count > 1 and (count - 1) * width > (times - 1) * best:
                best, times = width, count
        run = " -> ".join(words[i : i + best])
        folded.append(run if times == 1 else f"({run}) x {times}" if best > 1 else f"{run} x {times}")
        i += best * times
    return folded


def _short(plan: Plan, task: Task) -> str:
    place = _place(task.placement)
    match task.kind:
        case TaskKind.TRANSFER:
            target = plan.regst[task.produces[0].regst].placement
            return f"link {_number(task.placement)}->{_number(target)}"
        case TaskKind.BOXING:
            assert isinstance(task.body, Boxing)
            return f"{place} {task.body.collective.value}"
        case _:
            return f"{place} {task.kind.value}"


def _place(placement: str) -> str:
    match = _STAGE.match(placement)
    return f"stage {match.group(1)}" if match else placement


def _number(placement: str) -> str:
    match = _STAGE.match(placement)
    return match.group(1) if match else placement


def _unit_text(graph: MarkedGraph, arc: int, acts: bool, names: dict[str, str]) -> str:
    node = int(graph.src[arc])
    task = graph.task_of(node)
    if task.id not in names:
        names[task.id] = task_name(graph.plan, task)
    who = names[task.id]
    if not graph.folded and len(graph.plan.ranks_of(task)) > 1:
        who += f" (rank {int(graph.node_rank[node])})"
    if acts:
        who += f" act {int(graph.node_act[node])}"
    why = _why(graph, arc, acts)
    return f"{who} -> {why}" if why else who


def _why(graph: MarkedGraph, arc: int, acts: bool) -> str:
    regst = graph.regst_of(arc)
    match ArcKind(int(graph.kind[arc])):
        case ArcKind.QUOTA:
            assert regst is not None
            return f"quota {regst.quota} of `{_regst(graph.plan, regst.id)}`"
        case ArcKind.STATE:
            assert regst is not None
            written = graph.task_of(int(graph.src[arc])).id == regst.producer
            return f"new `{_regst(graph.plan, regst.id)}`" if written else f"`{_regst(graph.plan, regst.id)}` updated in place"
        case ArcKind.DATA:
            assert regst is not None
            return f"data of `{regst.id}`" if acts and regst.kind is not RegstKind.CONTROL else ""
        case ArcKind.STREAM | ArcKind.CHOICE:
            return f"next on stream {graph.task_of(int(graph.src[arc])).stream}" if _crosses(graph, arc) else ""
        case ArcKind.TASK:
            return ""


def _crosses(graph: MarkedGraph, arc: int) -> bool:
    return int(graph.node_task[graph.src[arc]]) != int(graph.node_task[graph.dst[arc]])


def _regst(plan: Plan, regst: str) -> str:
    """A Regst's id and the first value in it, if that says more."""
    tensors = plan.regst[regst].tensors
    if not tensors or tensors[0].name == regst:
        return regst
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return f"{regst} ({tensors[0].name}{more})"
