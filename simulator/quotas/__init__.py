"""Regst quotas: how many blocks each Regst needs, found and proved on the timed marked graph of a Plan."""

from simulator.quotas.budget import under_budget
from simulator.quotas.pareto_curve import pareto
from simulator.quotas.realise import SizedPlan
from simulator.quotas.rules import QuotaRule, rule_quotas
from simulator.quotas.throughput import full_throughput

__all__ = ["SizedPlan", "QuotaRule", "full_throughput", "pareto", "rule_quotas", "under_budget"]
