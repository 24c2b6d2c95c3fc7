"""On how many nodes a model would fit that fits on none of the shapes that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.options import PlanOptions, by
from planner.parallelism.shape import Shape, shapes
from planner.search.pins import parse_pins
from planner.solve.problem import NotFoundInTime
from planner.solve.time_limit import TimeLimit

__all__ = ["would_fit"]

_DOUBLINGS = 5


def would_fit(
    graph_of: Callable[[int], LogicalGraph], batch_size: int, cluster: Cluster, options: PlanOptions, time_limit: TimeLimit
) -> str:
    """The end of a refusal: the smallest multiple of the cluster, by doubling, on whose devices a shape of one stage may fit, or that there is none.

    The largest is asked about first: where it is too small, the others are not bounded.
    """
    if cluster.parts:
        return f"every device is planned for as if it had the least memory of {cluster.name}: use more stages, or more devices"
    nic = cluster.nic if cluster.nic is not None else cluster.node
    *smaller, largest = (replace(cluster, num_nodes=cluster.num_nodes << doubling, nic=nic) for doubling in range(1, _DOUBLINGS + 1))
    fitting = partial(_shape_that_fits, graph_of, batch_size, options=options, time_limit=time_limit)
    try:
        last = fitting(largest)
        if last is None:
            return f"not even {largest.num_nodes} such nodes would do: use devices with more memory"
        found = next(((some, shape) for some in smaller if (shape := fitting(some)) is not None), (largest, last))
    except NotFoundInTime:
        return f"how many such nodes would do was not found in {time_limit.seconds:g} s: give more seconds to learn it"
    enough, shape = found
    return f"the states alone would fit on {enough.num_nodes} such nodes ({enough.num_devices} devices, mesh {by(shape.mesh)})"


def _shape_that_fits(
    graph_of: Callable[[int], LogicalGraph], batch_size: int, cluster: Cluster, *, options: PlanOptions, time_limit: TimeLimit
) -> Shape | None:
    """A shape of one stage with layouts that hold few bytes and fit into a device's memory; None: of those tried none has.

    Raises:
        NotFoundInTime: the time is up.
    """
    wanted = shapes(batch_size, cluster, micro_batches=options.micro_batches, stages=1)
    bounds = ShapeBounds(graph_of, batch_size, cluster, parse_pins(options.pins), time_limit=time_limit)
    for shape in wanted[:: max(1, len(wanted) // 4)]:
        try:
            if bounds.of(shape).smallest.held_bytes <= cluster.device.memory_bytes:
                return shape
        except Unsupported:
            continue
    return None
