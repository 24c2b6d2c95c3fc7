"""From a kernel table to a cluster of one such device: rates that were reached, and, of a device of the catalogue, how its kernels compare."""

from __future__ import annotations

import os
from collections import defaultdict
from statistics import median
from typing import Any

import torch

from planner.cost.kernels import KernelModel, device_sheet
from planner.cost.kernels.table import KernelTable
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec, Rate
from planner.ir.errors import InvalidCluster
from planner.ir.graph import Fusion, KernelKind
from planner.ir.tensor import DType

__all__ = ["cluster_of", "host_of"]

_SMALL_S = 20e-6
"""Kernels below it are mostly launch, and say nothing of how a device compares."""
_TIMES = {
    KernelKind.PRODUCT: "product_times",
    KernelKind.CONVOLUTION: "product_times",
    KernelKind.ATTENTION: "attention_times",
    KernelKind.ATTENTION_BACKWARD: "attention_times",
    KernelKind.PASS: "pass_times",
}


def cluster_of(table: KernelTable, *, devices: int, memory_bytes: int) -> Cluster:
    """One node of such devices.  The link between them was not measured: it is the way through the host's memory, down and up.

    Args:
        devices: that the node has.   memory_bytes: of one.
    """
    name = table.about.get("gpu", table.device)
    float32 = table.rate_flop_per_s(DType.FLOAT32)
    halves = {dtype: rate for dtype in (DType.BFLOAT16, DType.FLOAT16) if (rate := table.rate_flop_per_s(dtype))}
    compared = _compared(table, name)
    device = DeviceSpec(
        kind=name,
        memory_bytes=memory_bytes,
        rate_flop_per_s=float32,
        memory_bandwidth_bytes_per_s=table.bandwidth_bytes_per_s,
        act_overhead_s=table.launch_s,
        rates=tuple(Rate(dtype=dtype, flop_per_s=rate) for dtype, rate in halves.items()),
        kernels=compared.pop("kernels", ""),  # type: ignore[arg-type]
        fusion=Fusion.EAGER if table.device.startswith("cuda") else Fusion.FUSED,
        **compared,  # type: ignore[arg-type]
    )
    size = max((copy.size_bytes for copy in table.copies), default=1 << 20)
    through_host_s = table.copy_s(size, to_device=False) + table.copy_s(size, to_device=True)
    facts = ", ".join(f"{key} {table.about[key]}" for key in ("driver_version", "clocks_sm", "torch", "cuda", "date") if key in table.about)
    return Cluster(
        name=f"measured-{table.device.replace(':', '-')}",
        source=f"regista calibrate --device {table.device}: {name}, {facts}, {len(table.times)} kernels ({table.id})",
        num_nodes=1,
        devices_per_node=devices,
        device=device,
        node=LinkSpec(latency_s=table.launch_s, bandwidth_bytes_per_s=size / through_host_s),
    )


def _compared(table: KernelTable, name: str) -> dict[str, object]:
    """Of a device of the catalogue: its name there, and how many times as long its kernels took as the catalogue says (medians)."""
    try:
        model = KernelModel.for_device(device_sheet(name).name)
    except InvalidCluster:
        return {}
    ratios: dict[str, list[float]] = defaultdict(list)
    for time in table.times:
        if time.seconds > _SMALL_S:
            ratios[_TIMES[time.work.kind]].append(time.seconds / model.work_s(time.work))
    return {"kernels": model.device.name} | {key: float(f"{median(values):.4g}") for key, values in ratios.items()}


def host_of(name: str) -> tuple[int, int]:
    """(devices like it that this host has, bytes of memory of one)."""
    kind = name.partition(":")[0]
    if kind != "cuda":
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return 1, memory_bytes
    cuda: Any = torch.cuda
    return int(cuda.device_count()), int(cuda.get_device_properties(torch.device(name)).total_memory)
