"""The edits of a Plan: a fixed sequence, all kinds in turn, no Plan twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random

from experiments.plan_edits import communications, layouts, ops, wiring
from experiments.plan_edits.kinds import Edit, EditKind, Editor
from planner.ir.plan import Plan

__all__ = ["EDITORS", "edits_of", "pairs_of"]

EDITORS: Mapping[EditKind, Editor] = {**communications.EDITORS, **wiring.EDITORS, **ops.EDITORS, **layouts.EDITORS}

_TRIES = 12


def edits_of(name: str, plan: Plan, number: int) -> Iterator[tuple[int, Edit]]:
    """The first ``number`` edits of a Plan; the same for the same name and Plan, whatever the number.

    Kinds for which the Plan gives no occasion are left out; a Plan gives fewer edits than asked for where all its kinds are used up.
    """
    rng = Random(f"edits of {name}")
    kinds = list(EDITORS)
    rng.shuffle(kinds)
    seen = {plan.plan_id}
    made = 0
    while made < number and kinds:
        for kind in list(kinds):
            edit = _new(EDITORS[kind], plan, rng, seen)
            if edit is None:
                kinds.remove(kind)
                continue
            seen.add(edit.plan.plan_id)
            yield made, edit
            made += 1
            if made == number:
                return


def pairs_of(name: str, plan: Plan, number: int) -> Iterator[tuple[int, Edit]]:
    """The first ``number`` pairs of edits, one upon the other: what one alone breaks, two may break so that it fits together again."""
    rng = Random(f"pairs of edits of {name}")
    kinds = list(EDITORS)
    seen = {plan.plan_id}
    made = 0
    for _ in range(_TRIES * number):
        one = _new(EDITORS[rng.choice(kinds)], plan, rng, seen)
        other = None if one is None else _new(EDITORS[rng.choice((one.kind, rng.choice(kinds)))], one.plan, rng, seen)
        if one is None or other is None:
            continue
        seen.add(other.plan.plan_id)
        yield made, replace(other, kind=one.kind, words=f"{one.words}; and {other.words}", reason=one.reason and other.reason)
        made += 1
        if made == number:
            return


def _new(editor: Editor, plan: Plan, rng: Random, seen: set[str]) -> Edit | None:
    """An edit that makes a Plan which was not made before."""
    for _ in range(_TRIES):
        edit = editor(plan, rng)
        if edit is not None and edit.plan.plan_id not in seen:
            return edit
    return None
