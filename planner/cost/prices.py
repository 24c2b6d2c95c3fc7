"""Files of prices, of either kind: acts of a Plan as they were measured, or kernels of a device."""

from __future__ import annotations

from planner.cost.analytic import AnalyticCost
from planner.cost.measured import MeasuredCost, load_cost
from planner.ir.cluster import Cluster
from planner.ir.protocols import CostModel
from planner.ir.text import kind_of_file

__all__ = ["load_prices"]


def load_prices(path: str, cluster: Cluster) -> CostModel:
    """The CostModel of a file that 'regista calibrate' has written.

    Args:
        cluster: of the Plan that is priced, for what a kernel table does not hold.

    Raises:
        InvalidFile: the file is missing, damaged, or of another kind.
    """
    if kind_of_file(path) != "kernels":
        measured: MeasuredCost = load_cost(path)
        return measured
    from planner.cost.kernels.table import load_kernels  # numpy: not before it is needed
    from planner.cost.table_cost import TableCost

    return TableCost(load_kernels(path), AnalyticCost(cluster))
