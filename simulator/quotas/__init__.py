"""Regst quotas: how many blocks each Regst needs, found and proved on the timed marked graph of a Plan."""

from simulator.quotas.budget import under_budget
from simulator.quotas.curve import pareto
from simulator.quotas.full import full_throughput
from simulator.quotas.realise import Requoted
from simulator.quotas.rules import Rule, rule_quotas

__all__ = ["Requoted", "Rule", "full_throughput", "pareto", "rule_quotas", "under_budget"]
