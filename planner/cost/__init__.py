"""The price list: one for the search and for the simulator."""

from planner.cost.analytic import AnalyticCost

__all__ = ["AnalyticCost"]
