"""The lowering with a bug in it: a copy of the repository holds the bug, a forked process imports the lowering from there and nothing else.

What the lowering is given (stages, layouts, routes) was searched once, by the sound planner; the validator and the performer are sound, too.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import planner
from experiments.plan_edits.bases import base_plan
from experiments.plan_edits.oracle import Oracle, Performed
from experiments.plan_edits.rows import ACCEPTED
from experiments.plan_edits.trial import asked, validated
from experiments.planted_lowering_bugs.bugs import Bug
from planner.ir.actors.verify import verify
from planner.ir.plan import Plan
from planner.parallelism.one_shape import lowered as lowering
from tests.mutation.tree import planted

__all__ = ["Lowered", "Trial", "lowered", "tried"]

_COMPILED = "planner.lower.orders.begun"


@dataclass(frozen=True, slots=True)
class Lowered:
    """A base Plan, what its lowering was given, and the oracle of its program."""

    name: str
    plan: Plan
    given: tuple[Any, ...]
    oracle: Oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one Plan under one bug.

    lowered: 'same' where the bug did not show, 'other', or what the lowering said.   verify, validate, performed: as in experiments.plan_edits;
    empty where there is no other Plan.
    """

    base: str
    lowered: str
    verify: str = ""
    validate: str = ""
    performed: str = ""
    what: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the Plan, performed, gave other numbers than without the bug, or ended in an error."""
        return self.performed not in ("", Performed.EQUAL.value)

    @property
    def is_caught(self) -> bool:
        """The validator refuses it in our words."""
        return self.validate not in ("", ACCEPTED) and not self.validate.startswith("crashed")


def lowered(name: str) -> Lowered:
    """Plan a base once, and keep what the lowering was given."""
    given: list[tuple[Any, ...]] = []
    sound = lowering.lower

    def kept(*arguments: Any) -> Plan:
        given.append(arguments)
        return sound(*arguments)

    with mock.patch.object(lowering, "lower", kept):
        plan = base_plan(name)
    again = sound(*given[-1])
    oracle = Oracle(plan)
    oracle.verdict_here(plan)  # so that the processes forked later have traced the program and performed the sound Plan
    return Lowered(name, again, given[-1], oracle)


def tried(tree: Path, bug: Bug, bases: Sequence[Lowered]) -> list[Trial]:
    """The trials of one bug, in a process of their own."""
    report = tree.parent / "trials.json"
    report.unlink(missing_ok=True)
    with planted(tree, bug):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                lower = _imported(tree)
                report.write_text(json.dumps([_trial(lower, base) for base in bases]), encoding="utf-8")
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    if status or not report.exists():
        raise RuntimeError(f"the trials of {bug.module}, {bug.breaks!r}, ended with status {status}")
    return [Trial(**row) for row in json.loads(report.read_text(encoding="utf-8"))]


def _imported(tree: Path) -> Callable[..., Plan]:
    """Import the lowering with the planted bug, in a process that has imported the one without it.

    What is compiled stays the sound one's: numba may take functions of two modules of one name for each other.  No bug is planted there.
    """
    lowering = [name for name in sys.modules if name == "planner.lower" or name.startswith("planner.lower.")]
    for name in lowering:
        if name != _COMPILED:
            del sys.modules[name]
    sys.dont_write_bytecode = True
    planner.__path__ = [str(tree / "planner")]
    module = importlib.import_module("planner.lower.build")
    assert Path(str(module.__file__)).is_relative_to(tree), module.__file__
    planner.__path__ = [str(Path(str(planner.__file__)).parent)]
    return module.lower  # type: ignore[no-any-return]


def _trial(lower: Callable[..., Plan], base: Lowered) -> Mapping[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: list[Plan] = []
        said = asked(lambda: made.append(lower(*base.given)))
        if said != ACCEPTED:
            return {"base": base.name, "lowered": said}
        (plan,) = made
        if plan.plan_id == base.plan.plan_id:
            return {"base": base.name, "lowered": "same"}
        plan = _with_recorded_options(plan, base)
        verdict = base.oracle.verdict(plan)
        return {
            "base": base.name,
            "lowered": "other",
            "verify": asked(lambda: verify(plan)),
            "validate": validated(plan, base.oracle.program),
            "performed": verdict.performed.value,
            "what": verdict.what[:300],
        }


def _with_recorded_options(plan: Plan, base: Lowered) -> Plan:
    """With what `regista plan` writes into options after the lowering, by which the program is found again."""
    return replace(plan, options=dict(base.oracle.plan.options))
