"""The price list: one for the search and for the simulator."""

from planner.cost.analytic import AnalyticCost
from planner.cost.table import ActPrice, MeasuredCost, act_key, load_cost, save_cost

__all__ = ["ActPrice", "AnalyticCost", "MeasuredCost", "act_key", "load_cost", "save_cost"]
