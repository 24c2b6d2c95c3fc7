"""Memory that libraries keep on a GPU for good, beside registers and workspace: counted, since no allocation of ours shows it.

(1)  cuBLAS: a workspace per (thread that calls it, stream that it was called on).  One thread puts all acts of a process into lanes
     (backend.inprocess.launcher), so there is one per lane that computes.                                     -> cublas_bytes()
"""

from __future__ import annotations

import re

from planner.ir.errors import Unsupported

__all__ = ["CUBLAS_CONFIG", "DETERMINISTIC_CONFIGS", "cublas_bytes", "parse_cublas_config"]

CUBLAS_CONFIG = "CUBLAS_WORKSPACE_CONFIG"
"""The variable by which cuBLAS and torch are told how large it is; it is read at the first product of a process."""

DETERMINISTIC_CONFIGS = (":4096:8", ":16:8")
"""With these cuBLAS gives the same bits in every run [cuBLAS documentation, results reproducibility]; torch's deterministic mode asks for one."""

_KIB = 1024
_SINCE_HOPPER = 4096 * 8 * _KIB
_BEFORE = (4096 * 2 + 16 * 8) * _KIB
"""What torch takes where the variable is not set [torch 2.11, aten/src/ATen/cuda/CublasHandlePool.cpp]."""


def parse_cublas_config(text: str) -> int:
    """``:SIZE:COUNT`` once or more, sizes in KiB -> bytes.

    >>> parse_cublas_config(":4096:2:16:8")
    8519680

    Raises:
        Unsupported: another form.
    """
    if not re.fullmatch(r"(:[0-9]{1,9}:[0-9]{1,9})+", text):
        raise Unsupported(f"{CUBLAS_CONFIG}={text!r}: write :SIZE:COUNT once or more, sizes in KiB, as in :4096:8, or leave it unset")
    numbers = [int(number) for number in text.split(":")[1:]]
    return sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True)) * _KIB


def cublas_bytes(lanes: int, capability_major: int, config: str | None) -> int:
    """Bytes of cuBLAS's workspaces on one GPU; equation (1).

    Args:
        lanes: on which products are computed.   config: of the variable; None: not set.
    """
    each = parse_cublas_config(config) if config else _SINCE_HOPPER if capability_major >= 9 else _BEFORE
    return lanes * each
