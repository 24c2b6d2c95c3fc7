"""A cluster: equal devices in nodes, and the links between them.  Files are TOML with the unit in every key.

schema = 1
name = "local-2"
source = "regista calibrate, 2 cores"
[device]
kind = "cpu"
memory_GB = 8.0
compute_GFLOPs = 90.0
memory_bandwidth_GBps = 10.0
act_overhead_us = 30.0
[topology]
nodes = 1
devices_per_node = 2
[links.node]
latency_us = 200.0
bandwidth_GBps = 1.2
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.ir.errors import InvalidCluster, InvalidFile
from planner.ir.text import save_text
from planner.ir.units import GB, US

__all__ = ["Cluster", "DeviceSpec", "LinkSpec", "load_cluster", "save_cluster"]

SCHEMA = 1

_SMALLEST, _LARGEST = 1e-12, 1e15
"""No rate of a machine is beyond these, in the units of the file; there, bytes / rate is no longer a useful number of seconds."""
_MOST_DEVICES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device.  Rates are sustained ones, not the data sheet's peaks; act_overhead_s is paid once per act."""

    kind: str
    memory_bytes: int
    rate_flop_per_s: float
    memory_bandwidth_bytes_per_s: float
    act_overhead_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """alpha-beta link: moving n bytes takes latency_s + n / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """num_nodes x devices_per_node devices; ``node`` links devices of a node, ``nic`` devices of different nodes.

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

    def __post_init__(self) -> None:
        for label, count in (("topology.nodes", self.num_nodes), ("topology.devices_per_node", self.devices_per_node)):
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
        if self.nic is not None:
            positive["links.nic.bandwidth_GBps"] = self.nic.bandwidth_bytes_per_s / GB
            latencies["links.nic.latency_us"] = self.nic.latency_s / US
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

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.devices_per_node

    def link_between(self, ranks: tuple[int, ...]) -> LinkSpec:
        """The slowest link that traffic among these ranks must cross."""
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
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidFile(f"{source}: no such cluster file; give a TOML file or local:N (N CPU devices of this machine)") from None
    except (OSError, ValueError, RecursionError) as error:  # numbers of 5000 digits are a ValueError, deep nesting is a RecursionError
        raise InvalidFile(f"{source}: not a readable TOML file ({error})") from None
    where = str(source)
    if data.get("schema") != SCHEMA:
        raise InvalidFile(
            f"{where}: cluster schema {data.get('schema')!r}, this regista reads {SCHEMA}; add 'schema = {SCHEMA}' or rewrite the file"
        )
    known = {"schema", "name", "source", "device", "topology", "links"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise InvalidCluster(f"{where}: unknown keys {unknown}; known are {sorted(known)}")
    device_keys = {"kind", "memory_GB", "compute_GFLOPs", "memory_bandwidth_GBps", "act_overhead_us"}
    device = _section(data, "device", where, device_keys)
    topology = _section(data, "topology", where, {"nodes", "devices_per_node"})
    links = _section(data, "links", where, {"node", "nic"})
    return Cluster(
        name=str(data.get("name", source.stem)),
        source=str(data.get("source", "")),
        num_nodes=_count(topology, "topology", "nodes", where),
        devices_per_node=_count(topology, "topology", "devices_per_node", where),
        device=DeviceSpec(
            kind=str(device.get("kind", "cpu")),
            memory_bytes=int(_number(device, "device", "memory_GB", where) * GB),
            rate_flop_per_s=_number(device, "device", "compute_GFLOPs", where) * GB,
            memory_bandwidth_bytes_per_s=_number(device, "device", "memory_bandwidth_GBps", where) * GB,
            act_overhead_s=_number(device, "device", "act_overhead_us", where, 0.0) * US,
        ),
        node=_link(links, "node", where),
        nic=_link(links, "nic", where) if "nic" in links else None,
    )


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write the TOML that load_cluster reads."""
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
        "",
        "[topology]",
        f"nodes = {cluster.num_nodes}",
        f"devices_per_node = {cluster.devices_per_node}",
    ]
    for name, link in (("node", cluster.node), ("nic", cluster.nic)):
        if link is not None:
            lines += [
                "",
                f"[links.{name}]",
                f"latency_us = {link.latency_s / US!r}",
                f"bandwidth_GBps = {link.bandwidth_bytes_per_s / GB!r}",
            ]
    save_text(path, "\n".join(lines) + "\n")
