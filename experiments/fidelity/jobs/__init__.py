"""Published jobs against ``regista predict``: cases, the fit of a machine's constants, cross-validated scores, and pictures."""

from experiments.fidelity.jobs.cases import Case, cases

__all__ = ["Case", "cases"]
