"""Seconds of acts, collectives and transfers, for the search and for the simulator alike: from a cluster's description, or measured."""

from planner.cost.analytic import (
    AnalyticCost,
    axis_boxing_s,
    boxing_s,
    compute_dtype,
    counted_work_s,
    full_rate,
    least_work_s,
    op_s,
    op_work_s,
    transfer_s,
)
from planner.cost.measured import ActPrice, Beside, MeasuredCost, act_key, load_cost, save_cost
from planner.cost.mesh_links import axis_link
from planner.cost.meshes import meshes, parse_mesh
from planner.cost.prices import load_prices

__all__ = [
    "ActPrice",
    "AnalyticCost",
    "Beside",
    "MeasuredCost",
    "act_key",
    "axis_boxing_s",
    "axis_link",
    "boxing_s",
    "compute_dtype",
    "counted_work_s",
    "full_rate",
    "least_work_s",
    "load_cost",
    "load_prices",
    "meshes",
    "op_s",
    "op_work_s",
    "parse_mesh",
    "save_cost",
    "transfer_s",
]
