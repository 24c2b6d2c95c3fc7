"""A cluster: equal devices in nodes, nodes in racks, and the links between them.  Files are TOML with the unit in every key.

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

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from planner.ir.errors import InvalidCluster, InvalidFile
from planner.ir.graph import OMITTED, Fusion, KernelKind
from planner.ir.reading import read_toml
from planner.ir.tensor import DType
from planner.ir.text import save_text
from planner.ir.units import GB, US

__all__ = ["Cluster", "DeviceSpec", "LinkSpec", "Rate", "cluster_toml", "load_cluster", "parse_cluster", "save_cluster"]

SCHEMA = 1

_SMALLEST, _LARGEST = 1e-12, 1e15
"""Rates outside this range, in the units of the file, belong to no machine, and bytes / rate would be no useful number of seconds."""
_MOST_DEVICES = 2**20
_KERNEL_TIMES = ("product_times", "attention_times", "pass_times")


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
class Cluster:
    """num_nodes x devices_per_node devices; ``node`` links devices of a node, ``nic`` nodes, ``rack`` racks of nodes_per_rack nodes.

    What each bandwidth belongs to is said above.  The last rack may hold fewer nodes than the others.
    interconnect: whose constants of NCCL price collectives; None: alpha-beta from the links.
    collective_times: how many times as long they take as these constants say.

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
        for name in _KERNEL_TIMES:
            positive[f"device.{name}"] = getattr(self.device, name)
        positive["links.collective_times"] = self.collective_times
        for own in self.device.rates:
            label = f"device.rates.{own.dtype.value}_GFLOPs"
            if label in positive:
                raise InvalidCluster(f"cluster {self.name}: {label} stands twice; a dtype has one rate")
            positive[label] = own.flop_per_s / GB
        for label, rate in positive.items():
            if not _SMALLEST <= rate <= _LARGEST:
                raise InvalidCluster(
                    f"cluster {self.name}: {label} = {rate:g}; memory and rates must be finite and > 0, or nothing ever arrives "
                    f"({_SMALLEST:g} to {_LARGEST:g})"
                )
        for label, latency in latencies.items():
            if not 0 <= latency <= _LARGEST:
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
        return self.num_nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.devices_per_node

    def rack_of(self, rank: int) -> int:
        """0 for every rank where racks do not matter."""
        return self.node_of(rank) // self.nodes_per_rack if self.nodes_per_rack is not None else 0

    def link_between(self, ranks: tuple[int, ...]) -> LinkSpec:
        """The outermost link that traffic among these ranks must cross, with nobody else on it."""
        if self.rack is not None and len({self.rack_of(rank) for rank in ranks}) > 1:
            return self.rack
        crosses = len({self.node_of(rank) for rank in ranks}) > 1
        return self.nic if crosses and self.nic is not None else self.node


def _number(table: Mapping[str, object], section: str, key: str, where: str, default: float | None = None) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidCluster(f"{where}: [{section}] {key} = {value!r}; a number is needed")
    if not -_LARGEST < value < _LARGEST:  # nan is not in between either
        raise InvalidCluster(f"{where}: [{section}] {key} = {value!r:.40}; a finite number below {_LARGEST:g} is needed")
    return float(value)


def _count(table: Mapping[str, object], section: str, key: str, where: str) -> int:
    value = _number(table, section, key, where)
    if value != int(value):
        raise InvalidCluster(f"{where}: [{section}] {key} = {value!r}; a whole number is needed")
    return int(value)


def _section(table: Mapping[str, object], name: str, where: str, known: set[str], inside: str = "") -> Mapping[str, object]:
    section = table.get(name)
    if not isinstance(section, dict):
        raise InvalidCluster(f"{where}: section [{inside}{name}] is missing")
    unknown = sorted(set(section) - known)
    if unknown:
        raise InvalidCluster(f"{where}: [{inside}{name}] has unknown keys {unknown}; known are {sorted(known)}")
    return section


def _rates(device: Mapping[str, object], where: str) -> tuple[Rate, ...]:
    """[device.rates], in the order of DType."""
    if "rates" not in device:
        return ()
    keys = {f"{dtype.value}_GFLOPs": dtype for dtype in DType}
    section = _section(device, "rates", where, set(keys), inside="device.")
    return tuple(
        Rate(dtype=dtype, flop_per_s=_number(section, "device.rates", key, where) * GB) for key, dtype in keys.items() if key in section
    )


def _fusion(device: Mapping[str, object], where: str) -> Fusion:
    given = device.get("fusion", Fusion.FUSED.value)
    if given not in [fusion.value for fusion in Fusion]:
        raise InvalidCluster(f"{where}: [device] fusion = {given!r}; it is one of {', '.join(fusion.value for fusion in Fusion)}")
    if "fusion" in device and not device.get("kernels"):
        raise InvalidCluster(f"{where}: [device] fusion = {given!r} without kernels; name the device whose kernel tables price it")
    return Fusion(given)


def _link(links: Mapping[str, object], name: str, where: str) -> LinkSpec:
    section = _section(links, name, where, {"latency_us", "bandwidth_GBps"}, inside="links.")
    return LinkSpec(
        latency_s=_number(section, f"links.{name}", "latency_us", where) * US,
        bandwidth_bytes_per_s=_number(section, f"links.{name}", "bandwidth_GBps", where) * GB,
    )


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster TOML.

    Raises:
        InvalidFile: missing or not TOML.   InvalidCluster: a key is missing, unknown, or impossible.
    """
    source = Path(path)
    data = read_toml(source, "give a cluster (TOML), or local:N (N CPU devices of this machine)")
    return parse_cluster(data, str(source), source.stem)


def parse_cluster(data: Mapping[str, object], where: str, name: str) -> Cluster:
    """A cluster from the data of its TOML.

    Args:
        where: what messages call the file.   name: of a cluster that has none.

    Raises:
        InvalidFile: another schema.   InvalidCluster: a key is missing, unknown, or impossible.
    """
    if data.get("schema") != SCHEMA:
        raise InvalidFile(
            f"{where}: cluster schema {data.get('schema')!r}, this regista reads {SCHEMA}; add 'schema = {SCHEMA}' or rewrite the file"
        )
    known = {"schema", "name", "source", "device", "topology", "links"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise InvalidCluster(f"{where}: unknown keys {unknown}; known are {sorted(known)}")
    device_keys = {
        "kind",
        "memory_GB",
        "compute_GFLOPs",
        "memory_bandwidth_GBps",
        "act_overhead_us",
        "rates",
        "kernels",
        "fusion",
        *_KERNEL_TIMES,
    }
    device = _section(data, "device", where, device_keys)
    topology = _section(data, "topology", where, {"nodes", "devices_per_node", "nodes_per_rack"})
    links = _section(data, "links", where, {"node", "nic", "rack", "interconnect", "collective_times"})
    interconnect = links.get("interconnect")
    if not isinstance(interconnect, str | None):
        raise InvalidCluster(f"{where}: [links] interconnect = {interconnect!r}; the name of an interconnect is needed")
    if "collective_times" in links and interconnect is None:
        raise InvalidCluster(f"{where}: [links] collective_times without interconnect; name the interconnect whose times it stretches")
    if stretched := [name for name in _KERNEL_TIMES if name in device and not device.get("kernels")]:
        raise InvalidCluster(f"{where}: [device] {stretched[0]} without kernels; name the device whose kernel tables it stretches")
    return Cluster(
        name=str(data.get("name", name)),
        source=str(data.get("source", "")),
        num_nodes=_count(topology, "topology", "nodes", where),
        devices_per_node=_count(topology, "topology", "devices_per_node", where),
        device=DeviceSpec(
            kind=str(device.get("kind", "cpu")),
            memory_bytes=int(_number(device, "device", "memory_GB", where) * GB),
            rate_flop_per_s=_number(device, "device", "compute_GFLOPs", where) * GB,
            memory_bandwidth_bytes_per_s=_number(device, "device", "memory_bandwidth_GBps", where) * GB,
            act_overhead_s=_number(device, "device", "act_overhead_us", where, 0.0) * US,
            rates=_rates(device, where),
            kernels=str(device.get("kernels", "")),
            fusion=_fusion(device, where),
            **{name: _number(device, "device", name, where, 1.0) for name in _KERNEL_TIMES},
        ),
        node=_link(links, "node", where),
        nic=_link(links, "nic", where) if "nic" in links else None,
        nodes_per_rack=_count(topology, "topology", "nodes_per_rack", where) if "nodes_per_rack" in topology else None,
        rack=_link(links, "rack", where) if "rack" in links else None,
        interconnect=interconnect,
        collective_times=_number(links, "links", "collective_times", where, 1.0),
    )


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write the TOML that load_cluster reads."""
    save_text(path, cluster_toml(cluster))


def cluster_toml(cluster: Cluster) -> str:
    """The text of a cluster's file."""
    device = cluster.device
    lines = [
        f"schema = {SCHEMA}",
        f"name = {json.dumps(cluster.name)}",
        f"source = {json.dumps(cluster.source)}",
        "",
        "[device]",
        f"kind = {json.dumps(device.kind)}",
        f"memory_GB = {device.memory_bytes / GB!r}",
        f"compute_GFLOPs = {device.rate_flop_per_s / GB!r}",
        f"memory_bandwidth_GBps = {device.memory_bandwidth_bytes_per_s / GB!r}",
        f"act_overhead_us = {device.act_overhead_s / US!r}",
    ]
    if device.kernels:
        lines += [f"kernels = {json.dumps(device.kernels)}", f"fusion = {json.dumps(device.fusion.value)}"]
        lines += [f"{name} = {getattr(device, name)!r}" for name in _KERNEL_TIMES if getattr(device, name) != 1]
    if device.rates:
        lines += ["", "[device.rates]", *(f"{rate.dtype.value}_GFLOPs = {rate.flop_per_s / GB!r}" for rate in device.rates)]
    lines += ["", "[topology]", f"nodes = {cluster.num_nodes}", f"devices_per_node = {cluster.devices_per_node}"]
    if cluster.nodes_per_rack is not None:
        lines.append(f"nodes_per_rack = {cluster.nodes_per_rack}")
    if cluster.interconnect is not None:
        lines += ["", "[links]", f"interconnect = {json.dumps(cluster.interconnect)}"]
        lines += [f"collective_times = {cluster.collective_times!r}"] if cluster.collective_times != 1 else []
    for name, link in (("node", cluster.node), ("nic", cluster.nic), ("rack", cluster.rack)):
        if link is not None:
            lines += [
                "",
                f"[links.{name}]",
                f"latency_us = {link.latency_s / US!r}",
                f"bandwidth_GBps = {link.bandwidth_bytes_per_s / GB!r}",
            ]
    return "\n".join(lines) + "\n"
