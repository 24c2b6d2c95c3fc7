"""From the names of devices to the devices of one process."""

from __future__ import annotations

from collections.abc import Mapping

from backend.devices.device import CpuDevice, Device

__all__ = ["open_devices"]


def open_devices(names: Mapping[int, str]) -> dict[int, Device]:
    """One Device per rank; ranks on one GPU have streams of their own.

    Raises:
        Unsupported: a GPU that this process cannot see.
    """
    opened: dict[int, Device] = {}
    for rank, name in names.items():
        if name == "cpu":
            opened[rank] = CpuDevice()
        else:
            from backend.devices.cuda import CudaDevice  # late: a host without GPU needs nothing of it

            opened[rank] = CudaDevice(name)
    return opened
