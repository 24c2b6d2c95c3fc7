"""The link that a collective along one mesh axis has: ranks lie row-major on the cluster, and all lines of the axis communicate at once.

    2 nodes of 4, mesh 2,4       axis 0 = columns: 4 rings cross, each has a quarter of the nic      axis 1 = rows: none crosses
      node 0   0 1 2 3
      node 1   4 5 6 7           mesh 8: one ring through both nodes, which has the whole nic

With b the bandwidth of a device's port (links.node), of a node's ports together (links.nic) and of a rack's uplink (links.rack):

(1) ring      beta = min(b_node, b_nic / h_node, b_rack / h_rack)
              h: of all nodes (racks), the largest number of hops of rings that leave one at once
(2) exchange  beta = min(b_node, (p-1) b_nic / e_node, (p-1) b_rack / e_rack)
              e: of all nodes (racks), the largest number of (sender, receiver) pairs that leave one at once
(3) alpha     = latency of the outermost link that any hop crosses                                           (1)-(3) -> axis_link
(4) transfer between kinds of node   beta = min(b_between / flows, b_nic / flows of the busiest node, at either end)      -> hop_link

b_node limits only the bytes that stay inside a node.  (1) is an all-reduce, all-gather or reduce-scatter.  (2) is an all-to-all: each of
the p devices of a line sends 1 / (p-1) of its bytes to each of the others.  A ring through several nodes does not reduce inside the nodes
first; on a mesh with one axis per level, boxing finds the hierarchical path by itself (SEMANTICS 2.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import lcm, prod

from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.collective import Collective

__all__ = ["axis_link", "hop_link", "line_link"]

RoomOf = Callable[[int], int]
"""Rank -> its node, or its rack."""


def axis_link(cluster: Cluster, mesh: tuple[int, ...], axis: int, collective: Collective = Collective.ALL_REDUCE) -> LinkSpec:
    """The link of one line of a mesh axis while all lines of that axis, on all stages, perform the same collective.

    Args:
        mesh: devices per axis of one stage; stage s has the prod(mesh) ranks from s * prod(mesh) on, row-major.

    >>> from planner.ir.cluster import DeviceSpec
    >>> device = DeviceSpec(kind="gpu", memory_bytes=10**9, rate_flop_per_s=1e12, memory_bandwidth_bytes_per_s=1e12)
    >>> node, nic = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=100e9), LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=20e9)
    >>> two = Cluster(name="two", source="", num_nodes=2, devices_per_node=4, device=device, node=node, nic=nic)
    >>> [axis_link(two, (2, 4), axis).bandwidth_bytes_per_s / 1e9 for axis in (0, 1)]
    [5.0, 100.0]
    """
    return _tiled(cluster, mesh[axis], prod(mesh[axis + 1 :]), collective is Collective.ALL_TO_ALL)


def line_link(cluster: Cluster, ranks: tuple[int, ...], collective: Collective = Collective.ALL_REDUCE) -> LinkSpec:
    """The link of the ranks of one line.

    Equally spaced ranks are a line of a row-major mesh, so axis_link gives their link.  Other ranks are assumed to communicate alone.
    """
    exchange = collective is Collective.ALL_TO_ALL
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    spaced = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + stride * len(ranks), stride))
    if spaced and ranks[0] % (stride * len(ranks)) < stride:
        return _tiled(cluster, len(ranks), stride, exchange)
    return _of_lines(cluster, [ranks], exchange)


def hop_link(cluster: Cluster, src_ranks: Sequence[int], dst_ranks: Sequence[int]) -> LinkSpec:
    """The link of one sender when all ranks of a stage send to another stage at once.

    Sender i sends to receiver i; where the stages differ in size, to receiver i * len(dst) // len(src).
    """
    return _between(cluster, tuple(src_ranks), tuple(dst_ranks))


@lru_cache(maxsize=4096)
def _between(cluster: Cluster, src_ranks: tuple[int, ...], dst_ranks: tuple[int, ...]) -> LinkSpec:
    flows = [(src, dst_ranks[i * len(dst_ranks) // len(src_ranks)]) for i, src in enumerate(src_ranks)]
    if cluster.parts:
        return _between_parts(cluster, flows)

    def busiest(room_of: RoomOf) -> tuple[int, bool]:
        crossing = [(room_of(src), room_of(dst)) for src, dst in flows if room_of(src) != room_of(dst)]
        most = max((max(Counter(side).values()) for side in zip(*crossing, strict=True)), default=0)
        return most, len(crossing) < len(flows)

    return _link(cluster, busiest(cluster.node_of), busiest(cluster.rack_of))


def _between_parts(cluster: Cluster, flows: Sequence[tuple[int, int]]) -> LinkSpec:
    """Equation (4): the link of flows from one kind of node to another, or inside one."""
    (src_part, src_first), (dst_part, dst_first) = (
        cluster.part_of_all([src for src, _ in flows]),
        cluster.part_of_all([d for _, d in flows]),
    )
    if (src_part, src_first) == (dst_part, dst_first):
        return _between(src_part, tuple(src - src_first for src, _ in flows), tuple(dst - dst_first for _, dst in flows))
    pair = cluster.pair_link(src_part.name, dst_part.name)
    shares = [pair.bandwidth_bytes_per_s / len(flows)]
    for part, ranks in ((src_part, [src for src, _ in flows]), (dst_part, [dst for _, dst in flows])):
        busiest = max(Counter(map(cluster.node_of, ranks)).values())
        shares.append((part.nic if part.nic is not None else part.node).bandwidth_bytes_per_s / busiest)
    return LinkSpec(latency_s=pair.latency_s, bandwidth_bytes_per_s=min(shares))


@lru_cache(maxsize=4096)
def _tiled(cluster: Cluster, extent: int, stride: int, exchange: bool) -> LinkSpec:
    """The link of lines of ``extent`` ranks, ``stride`` apart, that fill the cluster; a pattern that repeats per rack is counted once."""
    block = extent * stride
    repeats = lcm(block, cluster.devices_per_node * (cluster.nodes_per_rack or 1))
    end = min(repeats, max(cluster.num_devices // block, 1) * block)
    lines = [range(first, first + block, stride) for start in range(0, end, block) for first in range(start, start + stride)]
    return _of_lines(cluster, lines, exchange)


def _of_lines(cluster: Cluster, lines: Sequence[Sequence[int]], exchange: bool) -> LinkSpec:
    """Equations (1) or (2), and (3), for lines of equal length that communicate at once."""

    def busiest(room_of: RoomOf) -> tuple[float, bool]:
        leaving: Counter[int] = Counter()
        peers = max(len(lines[0]) - 1, 1) if exchange else 1
        for line in lines:
            rooms = [room_of(rank) for rank in line]
            if exchange:
                for room, members in Counter(rooms).items():
                    leaving[room] += members * (len(rooms) - members)
            else:
                for here, following in zip(rooms, (*rooms[1:], rooms[0]), strict=True):
                    leaving[here] += here != following
        return max(leaving.values()) / peers, leaving.total() < peers * len(lines) * len(lines[0])

    return _link(cluster, busiest(cluster.node_of), busiest(cluster.rack_of))


def _link(cluster: Cluster, nodes: tuple[float, bool], racks: tuple[float, bool]) -> LinkSpec:
    """The smallest share of a bandwidth, and the latency of the outermost link.

    Args:
        nodes, racks: the bytes that leave the busiest node (rack), in units of what one device sends, and whether any bytes stay inside.
    """
    links = [cluster.node] if nodes[1] or cluster.nic is None else []
    shares = [link.bandwidth_bytes_per_s for link in links]
    for link, (leaving, _) in ((cluster.nic, nodes), (cluster.rack, racks)):
        if link is not None and leaving:
            links.append(link)
            shares.append(link.bandwidth_bytes_per_s / leaving)
    return LinkSpec(latency_s=links[-1].latency_s, bandwidth_bytes_per_s=min(shares))
