"""The choice problem of another cluster from one of the same devices: nodes, strategies and what is held stay, edges get other prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.search.formulation.boxing_matrices import BoxingMatrices
from planner.search.formulation.mesh_tools import MeshTools
from planner.search.model import SearchModel
from planner.solve.problem import Edge

__all__ = ["repriced"]


def repriced(model: SearchModel, tools: MeshTools, limit_bytes: float) -> SearchModel | None:
    """What build_model would build with these tools and this limit, in a quarter of its time.

    Args:
        model: of the same staged graph, mesh, pins and options; with demands if the limit is finite, without if it is not.   tools: of its mesh,
            which share strategies and layout sets with those of the model.

    Returns:
        The model; None: it has other edges, or more than edges is priced anew.
    """
    before, now = model.costs.cluster, tools.costs.cluster
    if before.parts or now.parts or before.device != now.device or not model.matrices:
        return None
    if any(strategy.ring is not None for menu in {id(menu): menu for _, menu in model.ops.values()}.values() for strategy in menu):
        return None
    matrices = BoxingMatrices(tools)
    again = {id(matrix): matrices.again(key) for key, matrix in model.matrices.items()}
    is_left_out = [(matrix.any(), again[id(matrix)].any(), np.isfinite(again[id(matrix)]).any()) for matrix in model.matrices.values()]
    if any(was != is_now or not allows for was, is_now, allows in is_left_out):
        return None
    edges = tuple([Edge(edge.u, edge.v, again[id(edge.matrix)]) for edge in model.problem.edges])
    problem = replace(model.problem, edges=edges, limit=limit_bytes)
    return replace(model, costs=tools.costs, problem=problem, matrices=matrices.known)
