"""A cluster: devices in nodes, nodes in racks, and the links between them.  Files are TOML with the unit in every key.

Devices are equal, or there are several kinds of node (planner.ir.cluster.mixed).

    device --node link--> node --nic link--> rack --rack link--> rest of the cluster

What a bandwidth belongs to (one direction; both directions work at once):

    links.node   one device: its own port to the other devices of its node
    links.nic    one node: all its network ports together, shared by the devices that send out of the node at the same time
    links.rack   one rack: its uplink, shared by the nodes that send out of the rack at the same time (left out: racks do not matter)

So a single ring through a node has the whole nic, eight rings have an eighth each (planner.cost.mesh_links).  A latency is that of a
collective, or of a message, whose outermost link it is.

schema = 1
name = "local-2"
source = "regista calibrate, 2 cores"
[device]
kind = "cpu"
memory_GB = 8.0
compute_GFLOPs = 90.0
memory_bandwidth_GBps = 10.0
act_overhead_us = 30.0
[device.rates]              # optional: dtypes that the device computes at another rate than compute_GFLOPs
bfloat16_GFLOPs = 180.0
[topology]
nodes = 1
devices_per_node = 2
nodes_per_rack = 4          # optional, together with [links.rack]
[links.node]
latency_us = 200.0
bandwidth_GBps = 1.2

``interconnect = "h100-nvswitch"`` in [links] is optional: collectives and transfers take what NCCL takes there (planner.cost.nccl), and every
device has a network port of its own, an equal part of links.nic.  ``kernels = "h100-sxm"`` in [device]: fragments take the sum of their
kernels' times (planner.cost.kernels), as ``fusion = "fused"`` (or eager, compiled) makes them.  ``product_times``, ``attention_times`` and
``pass_times`` beside ``kernels``, and ``collective_times`` beside ``interconnect``, say how many times as long these take as measured (1.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import assert_never

from planner.ir.errors import InvalidCluster
from planner.ir.graph import OMITTED, Fusion, KernelKind
from planner.ir.tensor import DType
from planner.ir.units import GB, US

__all__ = ["KERNEL_TIMES", "LARGEST", "Between", "Cluster", "DeviceSpec", "LinkSpec", "Rate"]

_SMALLEST, LARGEST = 1e-12, 1e15
"""Rates outside this range, in the units of the file, belong to no machine, and bytes / rate would be no useful number of seconds."""
_MOST_DEVICES = 2**20
KERNEL_TIMES = ("product_times", "attention_times", "pass_times")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast a device computes on operands of one dtype."""

    dtype: DType
    flop_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device.  Rates are sustained ones, not the data sheet's peaks; act_overhead_s is paid once per act.

    rates: dtypes that have a rate of their own (half precision on matrix units); every other dtype is computed at rate_flop_per_s.
    kernels: the device of planner.cost.kernels whose tables price fragments kernel by kernel; empty: the roofline of these rates.
    fusion: how models are run there; only with ``kernels``.
    product_times (convolutions too), attention_times, pass_times: how many times as long kernels take as the tables say; only with ``kernels``.
    """

    kind: str
    memory_bytes: int
    rate_flop_per_s: float
    memory_bandwidth_bytes_per_s: float
    act_overhead_s: float = 0.0
    rates: tuple[Rate, ...] = ()
    kernels: str = field(default="", metadata=OMITTED)
    fusion: Fusion = field(default=Fusion.FUSED, metadata=OMITTED)
    product_times: float = field(default=1.0, metadata=OMITTED)
    attention_times: float = field(default=1.0, metadata=OMITTED)
    pass_times: float = field(default=1.0, metadata=OMITTED)

    def times_of(self, kind: KernelKind) -> float:
        """How many times as long a kernel of the kind takes as the tables say."""
        match kind:
            case KernelKind.PRODUCT | KernelKind.CONVOLUTION:
                return self.product_times
            case KernelKind.ATTENTION | KernelKind.ATTENTION_BACKWARD:
                return self.attention_times
            case KernelKind.PASS:
                return self.pass_times
        assert_never(kind)

    def rate_for(self, dtype: DType | None) -> float:
        """flop/s on operands of ``dtype`` (None: no dtype in particular)."""
        return next((rate.flop_per_s for rate in self.rates if rate.dtype is dtype), self.rate_flop_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """alpha-beta link: moving n bytes takes latency_s + n / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The link between two kinds of node, by their names: all that is sent from one to the other at a time shares it, in each direction."""

    kinds: tuple[str, str]
    link: LinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """num_nodes x devices_per_node devices; ``node`` links devices of a node, ``nic`` nodes, ``rack`` racks of nodes_per_rack nodes.

    What each bandwidth belongs to is said above.  The last rack may hold fewer nodes than the others.
    interconnect: whose constants of NCCL price collectives; None: alpha-beta from the links.
    collective_times: how many times as long they take as these constants say.
    parts, between: the kinds of node in the order of their ranks, and the links between them (planner.ir.cluster.mixed); the other fields then
        say what every device, node and link is at least.  Empty: all nodes are equal.

    Raises:
        InvalidCluster: a count, rate or latency that no machine can have.
    """

    name: str
    source: str
    num_nodes: int
    devices_per_node: int
    device: DeviceSpec
    node: LinkSpec
    nic: LinkSpec | None = None
    nodes_per_rack: int | None = None
    rack: LinkSpec | None = None
    interconnect: str | None = field(default=None, metadata=OMITTED)
    collective_times: float = field(default=1.0, metadata=OMITTED)
    parts: tuple[Cluster, ...] = field(default=(), metadata=OMITTED)
    between: tuple[Between, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        counts = {"topology.nodes": self.num_nodes, "topology.devices_per_node": self.devices_per_node}
        if self.nodes_per_rack is not None:
            counts["topology.nodes_per_rack"] = self.nodes_per_rack
        for label, count in counts.items():
            if count < 1:
                raise InvalidCluster(f"cluster {self.name}: {label} = {count}; a cluster needs at least 1")
        if self.num_devices > _MOST_DEVICES:
            raise InvalidCluster(f"cluster {self.name}: {self.num_devices} devices; at most {_MOST_DEVICES} are planned for")
        # In the units of the file, which is where the reader mends them.
        positive: dict[str, float] = {
            "device.memory_GB": self.device.memory_bytes / GB,
            "device.compute_GFLOPs": self.device.rate_flop_per_s / GB,
            "device.memory_bandwidth_GBps": self.device.memory_bandwidth_bytes_per_s / GB,
            "links.node.bandwidth_GBps": self.node.bandwidth_bytes_per_s / GB,
        }
        latencies = {"device.act_overhead_us": self.device.act_overhead_s / US, "links.node.latency_us": self.node.latency_s / US}
        for name, link in (("nic", self.nic), ("rack", self.rack)):
            if link is not None:
                positive[f"links.{name}.bandwidth_GBps"] = link.bandwidth_bytes_per_s / GB
                latencies[f"links.{name}.latency_us"] = link.latency_s / US
        for name in KERNEL_TIMES:
            positive[f"device.{name}"] = getattr(self.device, name)
        positive["links.collective_times"] = self.collective_times
        for own in self.device.rates:
            label = f"device.rates.{own.dtype.value}_GFLOPs"
            if label in positive:
                raise InvalidCluster(f"cluster {self.name}: {label} stands twice; a dtype has one rate")
            positive[label] = own.flop_per_s / GB
        for label, rate in positive.items():
            if not _SMALLEST <= rate <= LARGEST:
                raise InvalidCluster(
                    f"cluster {self.name}: {label} = {rate:g}; memory and rates must be finite and > 0, or nothing ever arrives "
                    f"({_SMALLEST:g} to {LARGEST:g})"
                )
        for label, latency in latencies.items():
            if not 0 <= latency <= LARGEST:
                raise InvalidCluster(f"cluster {self.name}: {label} = {latency:g}; latencies must be finite and >= 0")
        if self.num_nodes > 1 and self.nic is None:
            raise InvalidCluster(f"cluster {self.name}: {self.num_nodes} nodes but no [links.nic]; say how the nodes are connected")
        if (self.nodes_per_rack is None) != (self.rack is None):
            given, missing = (
                ("topology.nodes_per_rack", "[links.rack]") if self.rack is None else ("[links.rack]", "topology.nodes_per_rack")
            )
            raise InvalidCluster(f"cluster {self.name}: {given} is given but no {missing}; racks need both, or leave both out")

    @property
    def num_devices(self) -> int:
        return sum(part.num_devices for part in self.parts) if self.parts else self.num_nodes * self.devices_per_node

    def part_of(self, rank: int) -> tuple[Cluster, int]:
        """The kind of node to which a rank belongs, as a cluster of its own, and its first rank; all nodes are of one kind: (self, 0)."""
        first = 0
        for part in self.parts:
            if rank < first + part.num_devices:
                return part, first
            first += part.num_devices
        return (self.parts[-1], first - self.parts[-1].num_devices) if self.parts else (self, 0)

    def part_of_all(self, ranks: Sequence[int]) -> tuple[Cluster, int]:
        """The kind of node of a device group, as part_of.

        Raises:
            InvalidCluster: the group has devices of several kinds.
        """
        if not self.parts:
            return self, 0
        part, first = self.part_of(min(ranks))
        if max(ranks) >= first + part.num_devices:
            raise InvalidCluster(
                f"cluster {self.name}: ranks {min(ranks)} to {max(ranks)} are one device group, but {part.name} has ranks {first} to "
                f"{first + part.num_devices - 1} only; a stage has devices of one kind"
            )
        return part, first

    def device_of(self, rank: int) -> DeviceSpec:
        return self.part_of(rank)[0].device

    def node_of(self, rank: int) -> int:
        if not self.parts:
            return rank // self.devices_per_node
        part, first = self.part_of(rank)
        before = self.parts[: self.parts.index(part)]
        return sum(other.num_nodes for other in before) + (rank - first) // part.devices_per_node

    def rack_of(self, rank: int) -> int:
        """0 for every rank where racks do not matter."""
        return self.node_of(rank) // self.nodes_per_rack if self.nodes_per_rack is not None else 0

    def link_between(self, ranks: tuple[int, ...]) -> LinkSpec:
        """The outermost link that traffic among these ranks must cross, with nobody else on it."""
        if self.parts:
            links = [self.pair_link(part.name, other.name) for part, other in pairwise(dict.fromkeys(self.part_of(r)[0] for r in ranks))]
            if links:
                return min(links, key=lambda link: link.bandwidth_bytes_per_s)
            part, first = self.part_of(ranks[0])
            return part.link_between(tuple(rank - first for rank in ranks))
        if self.rack is not None and len({self.rack_of(rank) for rank in ranks}) > 1:
            return self.rack
        crosses = len({self.node_of(rank) for rank in ranks}) > 1
        return self.nic if crosses and self.nic is not None else self.node

    def pair_link(self, src: str, dst: str) -> LinkSpec:
        """The link between two kinds of node: their own, or the fewest links from one to the other, one after another.

        Raises:
            InvalidCluster: nothing connects them.
        """
        reached: dict[str, tuple[LinkSpec, ...]] = {src: ()}
        waiting = [src]
        while waiting and dst not in reached:
            here = waiting.pop(0)
            for pair in self.between:
                if here in pair.kinds:
                    there = pair.kinds[1 - pair.kinds.index(here)]
                    if there not in reached:
                        reached[there] = (*reached[here], pair.link)
                        waiting.append(there)
        if not reached.get(dst):
            raise InvalidCluster(
                f"cluster {self.name}: no link connects the nodes {src} with the nodes {dst}; reached from {src} are "
                f"{', '.join(sorted(reached))}; add [[between]] with kinds = [{src!r}, {dst!r}], latency_us and bandwidth_GBps"
            )
        path = reached[dst]
        return LinkSpec(
            latency_s=sum(link.latency_s for link in path), bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in path)
        )
