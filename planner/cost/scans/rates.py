"""Seconds of a state-space layer's own kernels (Mamba-2, Dao & Gu 2024): the scan by pieces of a sequence, and the causal convolution before it.

(1) scan          launch + tokens heads scan_ns (width / 64)                 backward: BACKWARD_PRODUCTS / FORWARD_PRODUCTS of it
(2) convolution   bytes read and written / conv_GBps                          backward: CONV_BACKWARD of it

rates.csv has the constants of each device, and says which are measured: ``python -m experiments.kernel_database --scans``.  Scans are Triton kernels
whose tiles are small, so that they gain little from a device's faster matrix units: one of the same build was measured on all devices.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from planner.cost.kernels import device_sheet
from planner.ir.errors import Unsupported

__all__ = ["ScanRates", "scan_rates"]

WIDTH = 64
"""Elements of a head in what was measured; a head of others takes as much longer or shorter. [assumed]"""
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 3, 8
"""Matrix products per chunk and head.  Forward: scores times inputs, the state behind the chunk, the output from the state before it.  Backward:
six gradients, the state again, and the scores again for the gradient of the decay. [counted in mamba-ssm 2.2: ssd_combined.py]"""
CONV_BACKWARD = 2.5
"""The convolution again, and reading its input and a gradient and writing another. [mamba-ssm: mamba_split_conv1d_scan_combined]"""
NEAREST = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRates:
    """Constants of one device, SI.   measured: of the device itself, both; else of another, scaled by multiprocessors and bandwidth."""

    launch_s: float
    head_token_s: float
    conv_bytes_per_s: float
    measured: bool

    def scan_s(self, tokens: int, heads: int, width: int, *, backward: bool = False) -> float:
        """Equation (1), of all sequences together.

        Raises:
            Unsupported: a size below 1.
        """
        if min(tokens, heads, width) < 1:
            raise Unsupported(f"a scan of {tokens} tokens by {heads} heads of {width}: every size is at least 1")
        forward_s = self.launch_s + tokens * heads * self.head_token_s * width / WIDTH
        return forward_s * (BACKWARD_PRODUCTS / FORWARD_PRODUCTS if backward else 1.0)

    def conv_s(self, tokens: int, channels: int, value_bytes: int, *, backward: bool = False) -> float:
        """Equation (2): each element is read and written once.

        Raises:
            Unsupported: a size below 1.
        """
        if min(tokens, channels, value_bytes) < 1:
            raise Unsupported(
                f"a convolution along {tokens} tokens of {channels} channels of {value_bytes} bytes: every size is at least 1"
            )
        return 2.0 * tokens * channels * value_bytes / self.conv_bytes_per_s * (CONV_BACKWARD if backward else 1.0)


@lru_cache(maxsize=64)
def scan_rates(device: str) -> ScanRates:
    """Of a device of the catalogue, by any of its names.

    Raises:
        InvalidCluster: no device has that name.
    """
    sheet, known = device_sheet(device), _known()
    if sheet.name in known:
        return known[sheet.name]
    like = device_sheet(sheet.like if sheet.like in known else NEAREST)
    rates = known[like.name]
    return ScanRates(
        launch_s=rates.launch_s,
        head_token_s=rates.head_token_s * like.units / sheet.units,
        conv_bytes_per_s=rates.conv_bytes_per_s * sheet.bandwidth_bytes_per_s / like.bandwidth_bytes_per_s,
        measured=False,
    )


@lru_cache(maxsize=1)
def _known() -> Mapping[str, ScanRates]:
    with resources.files(__package__).joinpath("rates.csv").open(encoding="utf-8") as file:
        return {
            row["device"]: ScanRates(
                launch_s=1e-6 * float(row["launch_us"]),
                head_token_s=1e-9 * float(row["scan_ns"]),
                conv_bytes_per_s=1e9 * float(row["conv_GBps"]),
                measured=row["scan"] == "measured",
            )
            for row in csv.DictReader(file)
        }
