"""How the ranks of a Plan lie on machines."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.errors import Mismatch
from planner.ir.plan import Plan

__all__ = ["NodeLayout", "node_layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """num_nodes machines with ranks_per_node processes each, rank r on machine r // ranks_per_node.   gpus_per_node: 0 for CPU devices."""

    num_nodes: int
    ranks_per_node: int
    gpus_per_node: int


def node_layout(plan: Plan, num_nodes: int | None = None) -> NodeLayout:
    """The layout that the Plan was made for: what its cluster calls a node is a machine.

    Args:
        num_nodes: how many machines there are; None: as many as the Plan needs.

    Raises:
        Mismatch: the ranks do not divide by the machines, or the Plan's cluster has another number of devices per node.
    """
    cluster, ranks = plan.cluster, plan.num_ranks
    needed = -(-ranks // cluster.devices_per_node)
    nodes = needed if num_nodes is None else num_nodes
    if nodes < 1 or ranks % nodes:
        raise Mismatch(f"{ranks} ranks of plan {plan.plan_id} do not divide by {nodes} nodes; it was made for {_wanted(plan, needed)}")
    each = ranks // nodes
    if nodes != needed or (nodes > 1 and each != cluster.devices_per_node):
        way = f"give --nnodes {needed}, or " if nodes != needed else ""
        raise Mismatch(
            f"plan {plan.plan_id} has {ranks} ranks for {_wanted(plan, needed)}, not for {nodes} nodes with {each} each: its costs and its meshes "
            f"know which ranks share a machine; {way}plan for a cluster TOML with topology.nodes = {nodes} and devices_per_node = {each}"
        )
    return NodeLayout(num_nodes=nodes, ranks_per_node=each, gpus_per_node=0 if cluster.device.kind == "cpu" else each)


def _wanted(plan: Plan, needed: int) -> str:
    return f"{needed} nodes of {plan.cluster.name}, {plan.cluster.devices_per_node} devices each"
