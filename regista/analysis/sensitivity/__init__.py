"""Which constants matter: the step of a Plan, and the choice of the Plan, with each constant of its cluster at both ends of its spread."""

from regista.analysis.sensitivity.study import Effect, Sensitivity, sensitivity

__all__ = ["Effect", "Sensitivity", "sensitivity"]
