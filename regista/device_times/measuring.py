"""Timing the kernels of one device: operands are made there, each op is performed alone, often, and its time kept."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from backend.devices.device import Device
from backend.devices.facts import device_facts
from backend.devices.opening import open_device
from backend.devices.options import DeviceOptions, numerics
from backend.measure.stopwatch import Stopwatch
from backend.ops.kernels import call
from planner.cost.kernels.table import CopyTime, KernelTable, KernelTime
from planner.ir.errors import Unsupported
from planner.ir.tensor import DType, TensorType
from regista.device_times.programs import KernelCase, Size, cases

__all__ = ["LeftOut", "calibrate_device", "kernel_times"]

COPIES = {Size.SMALL: (1 << 12, 1 << 16), Size.FULL: tuple(1 << power for power in range(12, 29, 2))}
"""Bytes."""

ROUNDS = {Size.SMALL: 3, Size.FULL: 7}
LEAST_S = {Size.SMALL: 1e-5, Size.FULL: 1e-3}


class LeftOut(UserWarning):
    """Kernels were not timed: no time was left, or the device has none for the op."""


def calibrate_device(
    name: str, size: Size = Size.FULL, *, budget_s: float = 120.0, on_progress: Callable[[str], None] = lambda text: None
) -> KernelTable:
    """The kernel table of a device.

    Args:
        name: ``cpu``, ``cuda:N`` or ``fake:N``.   budget_s: kernels that are not timed by then are left out, and it is said.

    Raises:
        Unsupported: a device that this process cannot see.
    """
    device = open_device(name)
    until = time.monotonic() + budget_s
    try:
        # Full float32 unless a kernel says otherwise, as runs have it.
        with numerics(DeviceOptions()), torch.no_grad():
            watch = Stopwatch(device, rounds=ROUNDS[size], least_s=LEAST_S[size])
            small = torch.zeros(1, device=device.torch_device)
            device.synchronize()
            launch_s = watch.launch_s(lambda: small.add_(1), 1000 if size is Size.FULL else 50)
            copies = tuple(_copies(device, watch, COPIES[size]))
            times = tuple(kernel_times(device, watch, cases(size), until=until, on_progress=on_progress))
            about = device_facts(device) | {
                "size": size.value,
                "kernels": f"{len(times)} timed, {watch.eager} of them without a graph",
                "method": "each kernel alone, warm, operands drawn at random; median of rounds of 1 ms and more",
            }
    finally:
        device.close()
    if not times:
        raise Unsupported(f"no kernel of {name} was timed in {budget_s:g} s; allow more time")
    return KernelTable(device=name, launch_s=launch_s, times=times, copies=copies, about=about)


def kernel_times(
    device: Device,
    watch: Stopwatch,
    wanted: Iterable[KernelCase],
    *,
    until: float,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[KernelTime]:
    """One row per case; what the device cannot perform and what comes too late is left out and said once.

    Args:
        until: on time.monotonic.
    """
    times: list[KernelTime] = []
    refused: list[str] = []
    late = 0
    for case in wanted:
        if time.monotonic() > until:
            late += 1
            continue
        on_progress(f"{len(times) + 1}: {case.op.target} of {case.source}")
        try:
            spread = watch.times(_performing(case, device))
        except (RuntimeError, NotImplementedError, IndexError) as error:  # torch's, of this op alone; the next one has its own operands
            refused.append(f"{case.op.target} ({str(error).splitlines()[0][:80]})")
            continue
        times.append(
            KernelTime(
                target=case.op.target,
                work=case.work,
                seconds=spread.seconds,
                low_s=spread.low_s,
                high_s=spread.high_s,
                rounds=spread.rounds,
            )
        )
    if late or refused:
        parts = [f"{late} kernels, as the time was over"] * bool(late) + [f"{len(refused)} that failed: {'; '.join(refused[:3])}"] * bool(
            refused
        )
        warnings.warn(f"not timed on {device.name}: {'; '.join(parts)}", LeftOut, stacklevel=2)
    return times


def _performing(case: KernelCase, device: Device) -> Callable[[], object]:
    generator = torch.Generator(device=device.torch_device).manual_seed(0)
    reads = {value: case.types[value] for value in case.op.inputs}
    bound = min((extent for kind in reads.values() if kind.dtype.is_floating for extent in kind.shape), default=2)
    env = {value: _drawn(kind, bound, device, generator) for value, kind in reads.items()}
    device.synchronize()  # they were made beside the stopwatch's lane
    op, where = case.op, str(device.torch_device)
    return lambda: call(op, env, where)


def _drawn(kind: TensorType, bound: int, device: Device, generator: torch.Generator) -> Tensor:
    """Numbers below 1, or places below every extent of the floating operands."""
    dtype, there = getattr(torch, kind.dtype.value), device.torch_device
    if kind.dtype.is_floating:
        return torch.rand(kind.shape, device=there, generator=generator).to(dtype)
    if kind.dtype is DType.BOOL:
        return torch.ones(kind.shape, dtype=torch.bool, device=there)
    if dtype.is_complex:
        return torch.ones(kind.shape, dtype=dtype, device=there)
    return torch.randint(0, max(bound, 1), kind.shape, device=there, generator=generator).to(dtype)


def _copies(device: Device, watch: Stopwatch, sizes: Iterable[int]) -> Iterable[CopyTime]:
    for size_bytes in sizes:
        host, there = device.host_memory(size_bytes), device.allocate(size_bytes)
        device.synchronize()
        for to_device, (target, source) in ((True, (there, host)), (False, (host, there))):
            spread = watch.times(lambda target=target, source=source: target.copy_(source, non_blocking=True))  # type: ignore[misc]
            yield CopyTime(to_device=to_device, size_bytes=size_bytes, seconds=spread.seconds)
