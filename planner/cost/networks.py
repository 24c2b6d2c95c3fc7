"""How much faster one of two clusters' networks can be: what a bound on the other says of it."""

from __future__ import annotations

from dataclasses import replace

from planner.ir.cluster import Cluster, LinkSpec

__all__ = ["least_share"]


def least_share(cluster: Cluster, other: Cluster) -> float:
    """A share s, from 0 to 1: collectives and transfers take at least s times as long on ``cluster`` as on ``other``, and what is computed as long.

    Of clusters that differ in their links alone it is the least of  bandwidth of other / bandwidth  and  latency / latency of other  over all links,
    and 1 where none is faster: so it is with an alpha-beta link, and with every algorithm of NCCL, of which the quickest is taken
    (planner.cost.collective_times).  Of other clusters, and of several kinds of node, nothing is said: 0.
    """
    same = replace(cluster, name=other.name, source=other.source, node=other.node, nic=other.nic, rack=other.rack)
    if cluster.parts or other.parts or (cluster.nic is None) != (other.nic is None) or same != other:
        return 0.0
    pairs = ((cluster.node, other.node), (cluster.nic, other.nic), (cluster.rack, other.rack))
    return min(1.0, *(_share(link, its) for link, its in pairs if link is not None and its is not None))


def _share(link: LinkSpec, other: LinkSpec) -> float:
    latency = link.latency_s / other.latency_s if other.latency_s else 1.0
    return min(other.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s, latency)
