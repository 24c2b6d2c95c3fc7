"""The machine that predictions know for a cluster, and its number of devices."""

from __future__ import annotations

from planner.cost.kernels import device_sheet
from planner.ir.errors import InvalidCluster, Unsupported
from regista.clusters import resolve_cluster
from regista.jobs.machines import machine_names

__all__ = ["machine_and_devices"]


def machine_and_devices(name: str) -> tuple[str, int]:
    """Of a cluster by name (dgx-h100:16) or file.

    Raises:
        RegistaError: no such cluster, or predictions have no constants for its device.
    """
    cluster = resolve_cluster(name)
    machine = _machine_of(cluster.device.kind)
    if machine is None:
        raise Unsupported(
            f"cluster {name}: predictions have no constants for a {cluster.device.kind}; known are {', '.join(machine_names())}"
        )
    return machine, cluster.num_devices


def _machine_of(kind: str) -> str | None:
    """The machine whose device is of that kind, in any spelling of the catalogue of devices."""
    try:
        device = device_sheet(kind).name
    except InvalidCluster:
        return None
    return next((name for name in machine_names() if device_sheet(name).name == device), None)
