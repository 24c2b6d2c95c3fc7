"""What a new search would decide with one constant at another value: the program is traced once, and searched per value."""

from __future__ import annotations

from collections.abc import Callable

from planner.ir.plan import Plan
from regista.analysis.sensitivity.study import Choice, searched
from regista.analysis.whatif import whatif
from regista.programs import planned_program
from regista.trust.constants import Constant

__all__ = ["chooser"]


def chooser(plan: Plan) -> Callable[[Plan, Constant, float], Choice]:
    """Searches with the Plan's options and shape on its cluster with one constant set anew.

    Raises:
        Mismatch, InvalidFile, InvalidProgram: the program that the Plan names cannot be traced again.
    """
    graph = planned_program(plan).graph(plan.micro_batches)

    def choose(placed: Plan, constant: Constant, value: float) -> Choice:
        def again() -> tuple[Plan, float | None]:
            outcome = whatif(placed, [f"cluster.{constant.key}={value!r}"], graph)
            return outcome.plan, outcome.old_s

        return searched(placed, again)

    return choose
