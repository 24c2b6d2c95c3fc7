"""Clusters by name: ``local:N`` (N CPU devices of this machine), a preset (``dgx-a100:16``: 16 nodes of it), or a TOML file."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.cost.clusters import preset, preset_names
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec, load_cluster
from planner.ir.errors import InvalidCluster, Unsupported
from planner.ir.graph import Fusion
from planner.ir.tensor import DType
from planner.ir.text import encode
from planner.ir.units import GB, US

__all__ = ["Oversubscribed", "clusters_json", "local_cluster", "named_clusters", "resolve_cluster", "run_as", "show_clusters"]

# One core of a 2-core Zen4 virtual machine and gloo over loopback, measured 2026-11: 97-103 GFLOP/s of fp32 matrix products, about 10 GB/s of
# memory traffic per core, all-reduce of 16 MB in 18 ms.  'regista calibrate' replaces them by this machine's own.
_RATE_FLOP_PER_S = 90 * GB
_MEMORY_BANDWIDTH_BYTES_PER_S = 10 * GB
_LATENCY_S = 250 * US
_BANDWIDTH_BYTES_PER_S = 1.0 * GB
_ACT_OVERHEAD_S = 50 * US

_MOST_LOCAL = 1024


class Oversubscribed(UserWarning):
    """More devices than cores: the scheduler's 4 ms quanta make times unpredictable."""


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def local_cluster(num_devices: int) -> Cluster:
    """N CPU devices of this machine, which share its memory evenly, with default rates.

    Raises:
        InvalidCluster: fewer than one device.
    """
    if num_devices < 1:
        raise InvalidCluster(f"local:{num_devices}: a cluster needs at least 1 device")
    if num_devices > _MOST_LOCAL:
        raise InvalidCluster(
            f"local:{num_devices}: every device is a process of this machine, at most {_MOST_LOCAL}; describe a larger cluster in a TOML file"
        )
    cores = os.cpu_count() or 1
    if num_devices > cores:
        warnings.warn(
            f"local:{num_devices} puts {num_devices} devices on {cores} cores; it runs, but times come in the scheduler's 4 ms quanta and "
            f"no prediction is promised (use at most local:{cores} to compare)",
            Oversubscribed,
            stacklevel=2,
        )
    return Cluster(
        name=f"local-{num_devices}",
        source="defaults for one CPU core and gloo over loopback; run 'regista calibrate' to measure this machine",
        num_nodes=1,
        devices_per_node=num_devices,
        device=DeviceSpec(
            kind="cpu",
            memory_bytes=int(0.8 * _memory_bytes()) // num_devices,
            rate_flop_per_s=_RATE_FLOP_PER_S,
            memory_bandwidth_bytes_per_s=_MEMORY_BANDWIDTH_BYTES_PER_S,
            act_overhead_s=_ACT_OVERHEAD_S,
        ),
        node=LinkSpec(latency_s=_LATENCY_S, bandwidth_bytes_per_s=_BANDWIDTH_BYTES_PER_S),
    )


def resolve_cluster(text: str) -> Cluster:
    """``local:N``, the name of a preset with or without ``:NODES``, or the path of a TOML file.

    Raises:
        InvalidCluster, InvalidFile: with the way out.
    """
    if text.startswith("local"):
        match = re.fullmatch(r"local:(-?[0-9]{1,9})", text)
        if match is None:
            raise InvalidCluster(f"cluster {text!r}: write local:N with N devices, for example local:2, or the path of a TOML file")
        return local_cluster(int(match[1]))
    is_file = text.endswith(".toml") or "/" in text or Path(text).is_file()
    return load_cluster(text) if is_file and text.partition(":")[0] not in preset_names() else preset(text)


def run_as(cluster: Cluster, kernels: str | None) -> Cluster:
    """The cluster with models run in another way (planner.ir.graph.Fusion); None: as its file says.

    Raises:
        InvalidCluster: the cluster has no kernel table.   Unsupported: no such way.
    """
    if kernels is None:
        return cluster
    if kernels not in [fusion.value for fusion in Fusion]:
        raise Unsupported(f"kernels {kernels!r}; models are run {', '.join(fusion.value for fusion in Fusion)}")
    if not cluster.device.kernels:
        priced = ", ".join(name for name in preset_names() if preset(name).device.kernels)
        raise InvalidCluster(
            f"kernels {kernels!r}: cluster {cluster.name} has no kernel table, its fragments take what their flop and bytes take; take one of "
            f"{priced}, or name a device in its file ([device] kernels)"
        )
    return replace(cluster, device=replace(cluster.device, fusion=Fusion(kernels)))


def named_clusters() -> tuple[Cluster, ...]:
    """The presets, as their files say."""
    return tuple(map(preset, preset_names()))


def clusters_json(clusters: tuple[Cluster, ...]) -> dict[str, object]:
    """The facts of clusters for machines, in SI units."""
    return {"clusters": {cluster.name: encode(cluster) for cluster in clusters}}


def show_clusters(clusters: tuple[Cluster, ...], *, sources: bool = False) -> RenderableType:
    """One row per cluster, then (``sources``) where the numbers come from; rates are sustained ones."""
    table = Table(title="clusters by name, NAME:NODES for more nodes (sustained rates)", title_justify="left", caption_justify="left")
    for column in ("name", "devices", "device", "GB", "TFLOP/s", "GB/s"):
        table.add_column(column, no_wrap=True)
    for c in clusters:
        device = c.device
        rates = dict.fromkeys((device.rate_for(DType.FLOAT32), device.rate_for(DType.BFLOAT16)))
        links = (
            device.memory_bandwidth_bytes_per_s,
            c.node.bandwidth_bytes_per_s,
            *(() if c.nic is None else (c.nic.bandwidth_bytes_per_s,)),
        )
        table.add_row(
            escape(c.name),
            f"{c.num_nodes} x {c.devices_per_node}",
            escape(device.kind),
            f"{device.memory_bytes / GB:.4g}",
            ", ".join(f"{rate / GB / 1000:.4g}" for rate in rates),
            ", ".join(f"{rate / GB:.4g}" for rate in links),
        )
    table.caption = (
        "TFLOP/s in float32, bfloat16; GB/s of memory, of a device in its node, of a node's network; sources: --full, other dtypes: --json"
    )
    if not sources:
        return table
    origins = Table("name", "source", title="where the numbers come from", title_justify="left")
    for c in clusters:
        origins.add_row(escape(c.name), escape(c.source))
    return Group(table, origins)
