"""How a run uses devices with streams: options that travel from ``run`` to whoever performs the Plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

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
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    precisions = _Precisions.now()
    precisions.with_all("tf32" if options.tf32 else "ieee").set()
    cudnn.deterministic = options.deterministic
    # Trying out kernels picks another one from run to run, and its trials take memory that no plan counts.
    cudnn.benchmark = False
    torch.use_deterministic_algorithms(options.deterministic)
    try:
        yield
    finally:
        precisions.set()
        cudnn.deterministic, cudnn.benchmark = before
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])


@dataclass(frozen=True, slots=True)
class _Precisions:
    """What torch says of float32 by its new switches, one per backend and kind of op, and by its old ones.

    Reading an old one is an error where the two disagree [torch 2.13, aten/src/ATen/Context.cpp]: a user has set a new one, and kernels go by it.
    """

    new: tuple[str, ...]
    matmul: str | None
    cudnn: bool | None
    """None: cannot be read."""

    @classmethod
    def now(cls) -> _Precisions:
        new = tuple(torch._C._get_fp32_precision_getter(*switch) for switch in _SWITCHES)
        return cls(new, _readable(torch.get_float32_matmul_precision), _readable(lambda: torch.backends.cudnn.allow_tf32))

    def with_all(self, precision: str) -> _Precisions:
        """One precision for all that a GPU computes; CPUs keep theirs, which an old switch would change."""
        is_tf32 = precision == "tf32"
        return _Precisions((precision,) * _ON_GPU + self.new[_ON_GPU:], "high" if is_tf32 else "highest", is_tf32)

    def set(self) -> None:
        """An old switch sets new ones and refuses to where these disagree, so the new ones are made equal before and set after."""
        for switch in _SWITCHES[:_ON_GPU]:
            torch._C._set_fp32_precision_setter(*switch, "tf32" if self.cudnn else "ieee")
        if self.matmul is not None:
            torch.set_float32_matmul_precision(self.matmul)
        if self.cudnn is not None:
            torch.backends.cudnn.allow_tf32 = self.cudnn
        for switch, precision in zip(_SWITCHES, self.new, strict=True):
            torch._C._set_fp32_precision_setter(*switch, precision)


_SWITCHES = (("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"))
_ON_GPU = 4
"""How many of them a GPU's kernels go by."""

_Read = TypeVar("_Read")


def _readable(read: Callable[[], _Read]) -> _Read | None:
    try:
        return read()
    except RuntimeError:
        return None
