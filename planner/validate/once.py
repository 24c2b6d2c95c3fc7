"""Proofs that are not repeated: the record of a Plan (cluster, options, search), and orders, may change after it was proven to compute its program;
and fragments that the last proven Plan has, too, compute of the same tensors the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from planner.ir.plan import Plan
from planner.validate.fragments import ProvenFragments
from planner.validate.validate import TracedProgram, validate

__all__ = ["ProvenPlans"]

_RECORD = frozenset({"model", "options", "cluster", "search", "streams"})
"""Fields of a Plan that no proof reads; orders of streams were verified with the Plan (planner.ir.actors.verify)."""
_LATEST = 4
"""So many Plans are remembered."""


@dataclass(slots=True)
class ProvenPlans:
    """The Plans that were proven to compute a program lately."""

    program: TracedProgram
    _plans: list[Plan] = field(default_factory=list)
    _fragments: ProvenFragments | None = None
    """Those of the last of them."""

    def prove(self, plan: Plan) -> None:
        """Prove that a verified Plan computes the program, unless one was proven that differs only in its record or in orders of streams.

        Raises:
            PlanDoesNotComputeProgram: as planner.validate.validate.
        """
        if not any(_is_same(plan, proven) for proven in self._plans):
            graph = self.program.graph(plan.micro_batches)
            if self._fragments is None or self._fragments.graph is not graph:
                self._fragments = ProvenFragments(graph)
            validate(plan, self.program, is_verified=True, known=self._fragments)
            self._plans = [*self._plans[1 - _LATEST :], plan]


def _is_same(plan: Plan, proven: Plan) -> bool:
    """Whether the Plans have the same objects in every field that a proof reads; an equal copy is taken for another."""
    return all(_is_one(getattr(plan, f.name), getattr(proven, f.name)) for f in fields(Plan) if f.name not in _RECORD)


def _is_one(mine: object, other: object) -> bool:
    return mine is other or (isinstance(mine, int | str) and mine == other)
