"""Regst quotas: how many blocks each Regst needs, found and proved on the timed marked graph of a Plan."""

from simulator.quotas.budget import under_budget
from simulator.quotas.pareto_curve import pareto
from simulator.quotas.realise import SizedPlan
from simulator.quotas.throughput import full_throughput

__all__ = ["SizedPlan", "full_throughput", "pareto", "under_budget"]
