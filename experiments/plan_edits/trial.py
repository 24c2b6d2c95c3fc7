"""One edit tried: verified, validated, performed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from experiments.fuzz_plans import Endless, deadline
from experiments.plan_edits.kinds import Edit, Reason
from experiments.plan_edits.oracle import DEADLINE_S, Oracle, Performed
from experiments.plan_edits.rows import ACCEPTED
from planner.frontend import Program
from planner.ir.actors.verify import verify
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan

__all__ = ["Tried", "asked", "tried", "validated"]


class Tried(TypedDict):
    """The columns of a Row that a trial fills."""

    verify: str
    validate: str
    performed: str
    error: float
    what: str
    reason: str


def tried(edit: Edit, oracle: Oracle) -> Tried:
    """What verify and the validator say of an edit, and what it computes where verify accepts it."""
    verdict = asked(lambda: verify(edit.plan))
    if verdict != ACCEPTED:
        return Tried(verify=verdict, validate="", performed="", error=0.0, what="", reason="")
    accepted = validated(edit.plan, oracle.program)
    performed = oracle.verdict(edit.plan)
    reason = ""
    if performed.performed is Performed.EQUAL:
        if edit.reason is not None:
            reason = edit.reason.value
        else:
            # Another draw of state tells equal numbers from equal by chance.
            performed = oracle.verdict(edit.plan, draw=1)
            reason = Reason.BOTH_DRAWN.value if performed.performed is Performed.EQUAL else ""
    return Tried(
        verify=verdict,
        validate=accepted,
        performed=performed.performed.value,
        error=performed.error,
        what=_line(performed.what),
        reason=reason,
    )


def validated(plan: Plan, program: Program) -> str:
    """What the validator says: accepted, its refusal, or how it crashed; nothing where this version has none."""
    try:
        from planner.validate import validate
    except ImportError:
        return ""
    return asked(lambda: validate(plan, program))


def asked(question: Callable[[], object]) -> str:
    """ACCEPTED, the refusal that the question ended in, or how it crashed."""
    try:
        with deadline(DEADLINE_S):
            question()
    except RegistaError as error:
        return _line(f"{type(error).__name__}: {error}")
    except (Exception, Endless) as error:
        return _line(f"crashed: {type(error).__name__}: {error}")
    return ACCEPTED


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
