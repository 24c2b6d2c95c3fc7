"""Clusters of several kinds of node.  In the file, [[nodes]] stands for each kind instead of [device], [topology] and [links]:

schema = 1
name = "two kinds"
[[nodes]]
name = "a100"
count = 2
devices_per_node = 8
device = { kind = "A100", memory_GB = 40.0, compute_GFLOPs = 13650.0, memory_bandwidth_GBps = 1088.5 }      # as [device]
links = { node = { latency_us = 5.0, bandwidth_GBps = 226.0 }, nic = { latency_us = 10.0, bandwidth_GBps = 188.0 } }      # as [links]
[[nodes]]
name = "v100"
...
[[between]]                 # as many as there are links between kinds; every kind must be reached from every other
kinds = ["a100", "v100"]
latency_us = 20.0
bandwidth_GBps = 25.0

Ranks are numbered through the kinds in the order of the file.  A device group, which performs a stage, has devices of one kind, and is priced by
their rates and links.  What goes from one kind to another shares the link between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from planner.ir.cluster.cluster import Between, Cluster, DeviceSpec, LinkSpec, Rate
from planner.ir.errors import InvalidCluster
from planner.ir.tensor import DType

__all__ = ["mixed_cluster"]


def mixed_cluster(name: str, source: str, parts: Sequence[Cluster], between: Sequence[Between]) -> Cluster:
    """A cluster of several kinds of node, each a cluster of its own.  What belongs to no kind is what all of them have at least.

    Raises:
        InvalidCluster: fewer than two kinds, two of one name, or a link of unknown kinds; kinds that nothing connects.
    """
    names = [part.name for part in parts]
    if len(names) < 2:
        raise InvalidCluster(f"cluster {name}: {len(names)} kind of node in [[nodes]]; write [device], [topology] and [links] for one kind")
    if len(set(names)) < len(names):
        raise InvalidCluster(f"cluster {name}: [[nodes]] have the names {', '.join(names)}; give each kind a name of its own")
    for pair in between:
        if pair.kinds[0] == pair.kinds[1] or not set(pair.kinds) <= set(names):
            raise InvalidCluster(
                f"cluster {name}: [[between]] kinds = {list(pair.kinds)}; a link is between two different kinds of {', '.join(names)}"
            )
    links = [part.node for part in parts] + [part.nic for part in parts if part.nic is not None] + [pair.link for pair in between]
    cluster = Cluster(
        name=name,
        source=source,
        num_nodes=sum(part.num_nodes for part in parts),
        devices_per_node=gcd(*(part.devices_per_node for part in parts)),
        device=_least_device([part.device for part in parts]),
        node=_least_link([part.node for part in parts]),
        nic=_least_link(links),
        parts=tuple(parts),
        between=tuple(between),
    )
    for part in parts[1:]:
        cluster.pair_link(parts[0].name, part.name)
    return cluster


def _least_device(devices: Sequence[DeviceSpec]) -> DeviceSpec:
    rated = {rate.dtype for device in devices for rate in device.rates}
    return DeviceSpec(
        kind=" + ".join(dict.fromkeys(device.kind for device in devices)),
        memory_bytes=min(device.memory_bytes for device in devices),
        rate_flop_per_s=min(device.rate_flop_per_s for device in devices),
        memory_bandwidth_bytes_per_s=min(device.memory_bandwidth_bytes_per_s for device in devices),
        act_overhead_s=max(device.act_overhead_s for device in devices),
        rates=tuple(Rate(dtype=dtype, flop_per_s=min(device.rate_for(dtype) for device in devices)) for dtype in DType if dtype in rated),
    )


def _least_link(links: Sequence[LinkSpec]) -> LinkSpec:
    return LinkSpec(
        latency_s=max(link.latency_s for link in links), bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in links)
    )
