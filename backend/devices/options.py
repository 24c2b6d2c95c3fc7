"""How a run uses devices with streams: options that travel from ``run`` to whoever performs the Plan."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from backend.devices.libraries import CUBLAS_CONFIG, DETERMINISTIC_CONFIGS
from planner.ir.errors import Unsupported

__all__ = ["AHEAD", "DEFAULT_DEVICE_OPTIONS", "DeviceOptions", "check_options", "numerics"]

AHEAD = 8
"""Acts of one lane in flight: enough to hide the putting there, few enough that the choice among ready acts is made late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """graphs: fragments are put into lanes as recorded graphs from their second act on, where the device has such.
    ahead: acts of one lane in flight at once.
    tf32: float32 products and convolutions may take TensorFloat-32, which has 10 bits of the 23; False: full float32.
    deterministic: libraries choose kernels that give the same bits in every run, and an op that has none is an error.
    """

    graphs: bool = False
    ahead: int = AHEAD
    tf32: bool = False
    deterministic: bool = False


DEFAULT_DEVICE_OPTIONS = DeviceOptions()


def check_options(options: DeviceOptions, devices: Collection[str], *, own_process: bool) -> None:
    """Refuse options that would be ignored, or cannot be kept.

    Args:
        devices: names of those that are used.   own_process: products are computed in this very process, which may have begun already.

    Raises:
        Unsupported: with the way out.
    """
    if options.ahead < 1:
        raise Unsupported(f"ahead = {options.ahead}; at least 1 act of a lane is in flight")
    if options != DEFAULT_DEVICE_OPTIONS and all(name == "cpu" for name in devices):
        raise Unsupported(
            "graphs, ahead, tf32 and deterministic are options of devices with streams, and all ranks are on CPUs, which compute one act at a "
            "time in full float32; leave them out, or give --device"
        )
    config = os.environ.get(CUBLAS_CONFIG, "")
    if options.deterministic and own_process and any(name.startswith("cuda") for name in devices) and config not in DETERMINISTIC_CONFIGS:
        raise Unsupported(
            f"deterministic needs cuBLAS with a workspace of its own, which it reads at its first product, and {CUBLAS_CONFIG} is "
            f"{config or 'not set'}; set it to {' or '.join(DETERMINISTIC_CONFIGS)} before the process begins"
        )


@contextmanager
def numerics(options: DeviceOptions) -> Iterator[None]:
    """Set torch's switches for this process as the options say, whatever they were, and put them back."""
    cublas, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cublas.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cublas.allow_tf32 = cudnn.allow_tf32 = options.tf32
    cudnn.deterministic = options.deterministic
    # Trying out kernels picks another one from run to run, and its trials take memory that no plan counts.
    cudnn.benchmark = False
    torch.use_deterministic_algorithms(options.deterministic)
    try:
        yield
    finally:
        cublas.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
