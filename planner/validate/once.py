"""Proofs that are not repeated: the record of a Plan (cluster, options, search), and orders, may change after it was proven to compute its program."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from planner.ir.plan import Plan
from planner.validate.validate import TracedProgram, validate

__all__ = ["ProvenPlans"]

_RECORD = frozenset({"model", "options", "cluster", "search", "streams"})
"""Fields of a Plan that no proof reads; orders of streams were verified with the Plan (planner.ir.actors.verify)."""


@dataclass(slots=True)
class ProvenPlans:
    """The Plans that were proven to compute a program.   known: those of earlier searches for the very same program; it grows."""

    program: TracedProgram
    known: list[Plan] = field(default_factory=list)

    def prove(self, plan: Plan) -> None:
        """Prove that a verified Plan computes the program; not again if a proven Plan differs only in its record or in orders of streams.

        Raises:
            PlanDoesNotComputeProgram: as planner.validate.validate.
        """
        if not any(_is_same(plan, proven) for proven in self.known):
            validate(plan, self.program, is_verified=True)
            self.known.append(plan)


def _is_same(plan: Plan, proven: Plan) -> bool:
    """Whether the Plans have the same objects in every field that a proof reads; an equal copy is taken for another."""
    return all(_is_one(getattr(plan, f.name), getattr(proven, f.name)) for f in fields(Plan) if f.name not in _RECORD)


def _is_one(mine: object, other: object) -> bool:
    return mine is other or (isinstance(mine, int | str) and mine == other)
