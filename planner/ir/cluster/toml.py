"""A cluster's file: TOML with the unit in every key (planner.ir.cluster.cluster; several kinds of node: planner.ir.cluster.mixed)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from planner.ir.cluster.cluster import KERNEL_TIMES, LARGEST, Between, Cluster, DeviceSpec, LinkSpec, Rate
from planner.ir.cluster.mixed import mixed_cluster
from planner.ir.errors import InvalidCluster, InvalidFile
from planner.ir.graph import Fusion
from planner.ir.reading import read_toml
from planner.ir.tensor import DType
from planner.ir.text import save_text
from planner.ir.units import GB, US

__all__ = ["cluster_toml", "load_cluster", "parse_cluster", "save_cluster"]

SCHEMA = 1


def _number(table: Mapping[str, object], section: str, key: str, where: str, default: float | None = None) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidCluster(f"{where}: [{section}] {key} = {value!r}; a number is needed")
    if not -LARGEST < value < LARGEST:  # nan is not in between either
        raise InvalidCluster(f"{where}: [{section}] {key} = {value!r:.40}; a finite number below {LARGEST:g} is needed")
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
    if "nodes" in data:
        return _parse_mixed(data, where, name)
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
        *KERNEL_TIMES,
    }
    device = _section(data, "device", where, device_keys)
    topology = _section(data, "topology", where, {"nodes", "devices_per_node", "nodes_per_rack"})
    links = _section(data, "links", where, {"node", "nic", "rack", "interconnect", "collective_times"})
    interconnect = links.get("interconnect")
    if not isinstance(interconnect, str | None):
        raise InvalidCluster(f"{where}: [links] interconnect = {interconnect!r}; the name of an interconnect is needed")
    if "collective_times" in links and interconnect is None:
        raise InvalidCluster(f"{where}: [links] collective_times without interconnect; name the interconnect whose times it stretches")
    if stretched := [name for name in KERNEL_TIMES if name in device and not device.get("kernels")]:
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
            **{name: _number(device, "device", name, where, 1.0) for name in KERNEL_TIMES},
        ),
        node=_link(links, "node", where),
        nic=_link(links, "nic", where) if "nic" in links else None,
        nodes_per_rack=_count(topology, "topology", "nodes_per_rack", where) if "nodes_per_rack" in topology else None,
        rack=_link(links, "rack", where) if "rack" in links else None,
        interconnect=interconnect,
        collective_times=_number(links, "links", "collective_times", where, 1.0),
    )


def _parse_mixed(data: Mapping[str, object], where: str, name: str) -> Cluster:
    known = {"schema", "name", "source", "nodes", "between"}
    if unknown := sorted(set(data) - known):
        raise InvalidCluster(f"{where}: unknown keys {unknown} beside [[nodes]]; known are {sorted(known)}")
    parts = []
    for number, entry in enumerate(_tables(data, "nodes", where)):
        place = f"{where}: [[nodes]] number {number + 1}"
        own = {"name", "count", "devices_per_node", "device", "links"}
        if unknown := sorted(set(entry) - own):
            raise InvalidCluster(f"{place} has unknown keys {unknown}; known are {sorted(own)}")
        if not isinstance(entry.get("name"), str) or not entry["name"]:
            raise InvalidCluster(f"{place} name = {entry.get('name')!r}; a name is needed, by which [[between]] calls the kind")
        one = {
            "schema": SCHEMA,
            "topology": {key: entry[given] for key, given in (("nodes", "count"), ("devices_per_node",) * 2) if given in entry},
            **{key: entry[key] for key in ("name", "device", "links") if key in entry},
        }
        parts.append(parse_cluster(one, place, str(entry["name"])))
    between = []
    for number, entry in enumerate(_tables(data, "between", where)):
        place, kinds = f"{where}: [[between]] number {number + 1}", entry.get("kinds")
        if unknown := sorted(set(entry) - {"kinds", "latency_us", "bandwidth_GBps"}):
            raise InvalidCluster(f"{place} has unknown keys {unknown}; known are ['bandwidth_GBps', 'kinds', 'latency_us']")
        if not isinstance(kinds, list) or len(kinds) != 2 or not all(isinstance(kind, str) for kind in kinds):
            raise InvalidCluster(f"{place} kinds = {kinds!r}; the names of two kinds of node are needed")
        latency_us, bandwidth_GBps = (_number(entry, "between", key, place) for key in ("latency_us", "bandwidth_GBps"))
        if latency_us < 0 or bandwidth_GBps <= 0:
            raise InvalidCluster(f"{place}: latency_us = {latency_us:g}, bandwidth_GBps = {bandwidth_GBps:g}; >= 0 and > 0 are needed")
        link = LinkSpec(latency_s=latency_us * US, bandwidth_bytes_per_s=bandwidth_GBps * GB)
        between.append(Between(kinds=(kinds[0], kinds[1]), link=link))
    return mixed_cluster(str(data.get("name", name)), str(data.get("source", "")), parts, between)


def _tables(data: Mapping[str, object], name: str, where: str) -> list[Mapping[str, object]]:
    entries = data.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidCluster(f"{where}: {name} = {entries!r:.60}; write it as [[{name}]]")
    return entries


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write the TOML that load_cluster reads."""
    save_text(path, cluster_toml(cluster))


def cluster_toml(cluster: Cluster) -> str:
    """The text of a cluster's file."""
    lines = [f"schema = {SCHEMA}", f"name = {json.dumps(cluster.name)}", f"source = {json.dumps(cluster.source)}"]
    if not cluster.parts:
        topology = [f"nodes = {cluster.num_nodes}", f"devices_per_node = {cluster.devices_per_node}"]
        return "\n".join([*lines, *_device_lines(cluster.device, ""), "", "[topology]", *topology, *_links_lines(cluster, "")]) + "\n"
    for part in cluster.parts:
        lines += ["", "[[nodes]]", f"name = {json.dumps(part.name)}", f"count = {part.num_nodes}"]
        lines += [f"devices_per_node = {part.devices_per_node}", *_device_lines(part.device, "nodes."), *_links_lines(part, "nodes.")]
    for pair in cluster.between:
        lines += ["", "[[between]]", f"kinds = {json.dumps(list(pair.kinds))}", *_link_lines(pair.link)]
    return "\n".join(lines) + "\n"


def _device_lines(device: DeviceSpec, inside: str) -> list[str]:
    lines = [
        "",
        f"[{inside}device]",
        f"kind = {json.dumps(device.kind)}",
        f"memory_GB = {device.memory_bytes / GB!r}",
        f"compute_GFLOPs = {device.rate_flop_per_s / GB!r}",
        f"memory_bandwidth_GBps = {device.memory_bandwidth_bytes_per_s / GB!r}",
        f"act_overhead_us = {device.act_overhead_s / US!r}",
    ]
    if device.kernels:
        lines += [f"kernels = {json.dumps(device.kernels)}", f"fusion = {json.dumps(device.fusion.value)}"]
        lines += [f"{name} = {getattr(device, name)!r}" for name in KERNEL_TIMES if getattr(device, name) != 1]
    if device.rates:
        lines += ["", f"[{inside}device.rates]", *(f"{rate.dtype.value}_GFLOPs = {rate.flop_per_s / GB!r}" for rate in device.rates)]
    return lines


def _links_lines(cluster: Cluster, inside: str) -> list[str]:
    lines = [] if cluster.nodes_per_rack is None else [f"nodes_per_rack = {cluster.nodes_per_rack}"]
    if cluster.interconnect is not None:
        lines += ["", f"[{inside}links]", f"interconnect = {json.dumps(cluster.interconnect)}"]
        lines += [f"collective_times = {cluster.collective_times!r}"] if cluster.collective_times != 1 else []
    for name, link in (("node", cluster.node), ("nic", cluster.nic), ("rack", cluster.rack)):
        if link is not None:
            lines += ["", f"[{inside}links.{name}]", *_link_lines(link)]
    return lines


def _link_lines(link: LinkSpec) -> list[str]:
    return [f"latency_us = {link.latency_s / US!r}", f"bandwidth_GBps = {link.bandwidth_bytes_per_s / GB!r}"]
