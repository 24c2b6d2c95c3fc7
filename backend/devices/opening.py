"""From the names of devices to the devices of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from backend.devices.device import CpuDevice, Device

__all__ = ["open_device", "open_devices"]


def open_device(name: str) -> Device:
    """The device ``cpu``, ``cuda:N`` or ``fake:N``; the caller's to close.

    Raises:
        Unsupported: a GPU that this process cannot see.
    """
    if name == "cpu":
        return CpuDevice()
    if name.startswith("fake:"):
        from backend.devices.fake import FakeStreamDevice

        return FakeStreamDevice(name)
    from backend.devices.cuda import CudaDevice  # late: a host without GPU needs nothing of it

    return CudaDevice(name)


@contextmanager
def open_devices(names: Mapping[int, str]) -> Iterator[dict[int, Device]]:
    """One Device per rank, until the end; ranks on one GPU have streams of their own.

    Raises:
        Unsupported: a GPU that this process cannot see.
    """
    with ExitStack() as closing:
        opened: dict[int, Device] = {}
        for rank, name in names.items():
            opened[rank] = open_device(name)
            closing.callback(opened[rank].close)
        yield opened
