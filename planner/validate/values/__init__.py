"""What a value is, and what ops make of it: numbers of values, local forms of ops by their rules, steps of boxing."""

from __future__ import annotations

from planner.validate.values.forms import LocalForms
from planner.validate.values.numbers import ValueNumbers
from planner.validate.values.steps import BOXING_OP, LocalStep, broken_law

__all__ = ["BOXING_OP", "LocalForms", "LocalStep", "ValueNumbers", "broken_law"]
