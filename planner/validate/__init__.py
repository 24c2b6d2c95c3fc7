"""Translation validation: a proof, by symbolic execution, that a Plan computes its program; it knows neither the search nor the lowering."""

from __future__ import annotations

from planner.validate.once import ProvenPlans
from planner.validate.report import ValidationReport
from planner.validate.validate import TracedProgram, validate, validate_graph

__all__ = ["ProvenPlans", "TracedProgram", "ValidationReport", "validate", "validate_graph"]
