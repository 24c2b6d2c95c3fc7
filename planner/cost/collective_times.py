"""Seconds of collectives and transfers on a cluster: as NCCL performs them where the cluster names its interconnect, else alpha-beta.

(1) alpha-beta    alpha + sent bytes / beta                                            planner.cost.mesh_links      -> axis_s, line_s, hop_s
(2) NCCL          planner.cost.nccl, for p ranks of which g lie on each node; a device's network port is links.nic / devices of a node (or
                  links.rack / devices of a rack, if that is less), however many groups run side by side
(3) in a bucket   (1) without alpha; (2) at the rate of a bucket of BUCKET_BYTES: the tensor travels with others

All lines of an axis, or all senders of a stage, communicate at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from planner.cost.mesh_links import axis_link, hop_link, line_link
from planner.cost.nccl import CollectiveModel, Kind
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.collective import Collective, sent_bytes

__all__ = ["axis_s", "hop_s", "line_s"]

BUCKET_BYTES = 64e6
"""Assumed: between PyTorch's 25 MB per bucket and Megatron-LM's 40 million parameters."""


def axis_s(cluster: Cluster, mesh: tuple[int, ...], axis: int, collective: Collective, total_bytes: float, bucketed: bool) -> float:
    """Equations (1) to (3) along one mesh axis of at least two devices; ``total_bytes`` that they hold together."""
    if cluster.interconnect is None:
        return _alpha_beta_s(axis_link(cluster, mesh, axis, collective), sent_bytes(collective, total_bytes, mesh[axis]), bucketed)
    stride = prod(mesh[axis + 1 :])
    return _nccl_s(cluster, collective, total_bytes, mesh[axis], _most_per_node(cluster.devices_per_node, mesh[axis], stride), bucketed)


def line_s(cluster: Cluster, ranks: tuple[int, ...], collective: Collective, total_bytes: float, bucketed: bool) -> float:
    """Equations (1) to (3) for the ranks of one line, at least two."""
    if cluster.interconnect is None:
        return _alpha_beta_s(line_link(cluster, ranks, collective), sent_bytes(collective, total_bytes, len(ranks)), bucketed)
    per_node = max(Counter(map(cluster.node_of, ranks)).values())
    return _nccl_s(cluster, collective, total_bytes, len(ranks), per_node, bucketed)


def hop_s(cluster: Cluster, src_ranks: Sequence[int], dst_ranks: Sequence[int], largest_bytes: float) -> float:
    """Equations (1) and (2) of a transfer: all ranks of a stage send to another stage at once; the largest sender sends ``largest_bytes``."""
    if cluster.parts:
        (part, first), other = cluster.part_of_all(src_ranks), cluster.part_of_all(dst_ranks)
        if (part, first) == other:  # as inside a cluster of this kind alone
            return hop_s(part, [rank - first for rank in src_ranks], [rank - first for rank in dst_ranks], largest_bytes)
    link = hop_link(cluster, src_ranks, dst_ranks)
    if cluster.interconnect is None:
        return link.time_s(largest_bytes)
    crosses = any(cluster.node_of(a) != cluster.node_of(b) for a, b in zip(src_ranks, dst_ranks, strict=False))
    port = min(link.bandwidth_bytes_per_s, _port_bytes_per_s(cluster) or link.bandwidth_bytes_per_s) if crosses else None
    return cluster.collective_times * _model(cluster.interconnect, port).seconds(Kind.SEND_RECEIVE, largest_bytes, 2, 1 if crosses else 2)


def _alpha_beta_s(link: LinkSpec, size_bytes: float, bucketed: bool) -> float:
    """Equation (1); without alpha if the tensor travels in a bucket with others."""
    return size_bytes / link.bandwidth_bytes_per_s if bucketed else link.time_s(size_bytes)


def _nccl_s(cluster: Cluster, collective: Collective, total_bytes: float, ranks: int, per_node: int, bucketed: bool) -> float:
    """Equation (2), or (3).  Each rank of an all-to-all holds its part of the tensor, of the others the whole one."""
    assert cluster.interconnect is not None, "the caller has looked"
    size_bytes = total_bytes / ranks if collective is Collective.ALL_TO_ALL else total_bytes
    port = _port_bytes_per_s(cluster) if per_node < ranks else None
    if (
        collective is Collective.SHIFT
    ):  # each rank sends to the next: of a line over several nodes the last of a node to the first of another
        size_bytes, ranks, per_node = total_bytes / ranks, 2, 2 if per_node == ranks else 1
    if bucketed and size_bytes < BUCKET_BYTES:
        bucket_s = _seconds(cluster.interconnect, port, collective, BUCKET_BYTES, ranks, per_node)
        return cluster.collective_times * bucket_s * size_bytes / BUCKET_BYTES
    return cluster.collective_times * _seconds(cluster.interconnect, port, collective, size_bytes, ranks, per_node)


@lru_cache(maxsize=1 << 16)
def _seconds(interconnect: str, port: float | None, collective: Collective, size_bytes: float, ranks: int, per_node: int) -> float:
    return _model(interconnect, port).seconds(Kind.of(collective), size_bytes, ranks, per_node)


@lru_cache(maxsize=256)
def _model(interconnect: str, port_bytes_per_s: float | None) -> CollectiveModel:
    return CollectiveModel.for_interconnect(interconnect, net_bytes_per_s=port_bytes_per_s)


def _port_bytes_per_s(cluster: Cluster) -> float | None:
    """What a device has of the network while all devices of its node use it; None without a network."""
    ports = [] if cluster.nic is None else [cluster.nic.bandwidth_bytes_per_s / cluster.devices_per_node]
    if cluster.rack is not None and cluster.nodes_per_rack is not None:
        ports.append(cluster.rack.bandwidth_bytes_per_s / (cluster.nodes_per_rack * cluster.devices_per_node))
    return min(ports, default=None)


@lru_cache(maxsize=4096)
def _most_per_node(devices_per_node: int, extent: int, stride: int) -> int:
    """Ranks of a line on the node that has most of them."""
    return max(Counter(rank // devices_per_node for rank in range(0, extent * stride, stride)).values())
