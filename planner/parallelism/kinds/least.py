"""A lower bound on the step of a pipeline over several kinds of node, from its ops alone.

Stages lie on the kinds in the order of their ranks, equally many devices each.  With T_k the seconds that all ops of a micro-batch take on a device
group of kind k, and w_i the weight of stage i:

    (1) sum_i t_i >= sum over ops of min_k seconds on k
    (2) max_i t_i >= sum_i w_i t_i >= sum over ops of min_k (w_k seconds on k),     w_i = (1 / T_i) / sum_j (1 / T_j)
    (3) step      >= (1) + (m - 1) (2)                                              -> least_step_s

(1) to (3) hold for every cut between ops and every layout: communication is left out, and so are updates.
"""

from __future__ import annotations

from math import prod

import numpy as np

from planner.cost import least_work_s
from planner.ir.cluster import Cluster
from planner.ir.graph import LogicalGraph, Role
from planner.parallelism.shape import Shape, stage_devices

__all__ = ["least_step_s"]


def least_step_s(graph: LogicalGraph, cluster: Cluster, shape: Shape) -> float:
    """Equation (3), in seconds.

    Args:
        graph: of one micro-batch of the shape's.
    """
    kinds = list(dict.fromkeys(stage_devices(cluster, shape.stages)))
    ops = [op for op in graph.ops if op.role in (Role.FORWARD, Role.BACKWARD)]
    types = [{v: graph.values[v] for v in (*op.inputs, *op.outputs) if v} for op in ops]
    seconds = np.array([[least_work_s(kind, op, own) for op, own in zip(ops, types, strict=True)] for kind in kinds]) / prod(shape.mesh)
    size = cluster.num_devices // shape.stages
    counts = np.array([kind.num_devices // size for kind in kinds])
    weight = 1 / seconds.sum(axis=1)
    weight /= float((counts * weight).sum())
    return float(seconds.min(axis=0).sum() + (shape.micro_batches - 1) * (weight[:, None] * seconds).min(axis=0).sum())
