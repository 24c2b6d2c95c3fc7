"""Whether one host can hold the processes of a Plan; asked before any value is made."""

from __future__ import annotations

from pathlib import Path

from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.ir.units import KIB, MIB, show_bytes

__all__ = ["LEAST_WORKER_BYTES", "check_host", "free_bytes"]

LEAST_WORKER_BYTES = 16 * MIB
"""What a worker has for itself before it holds a tensor: private pages of two forked workers, Linux 6, torch 2.13 [measured, 2026-11]."""


def free_bytes() -> int:
    """Memory that new processes can have: MemAvailable of the kernel."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:"))


def check_host(plan: Plan) -> None:
    """Raises Unsupported: a process per rank needs more memory than is free on this host, before any of them has a tensor."""
    needed_bytes, there_bytes = plan.num_ranks * LEAST_WORKER_BYTES, free_bytes()
    if needed_bytes > there_bytes:
        raise Unsupported(
            f"{plan.num_ranks:,} ranks are {plan.num_ranks:,} processes of at least {show_bytes(LEAST_WORKER_BYTES)}, "
            f"{show_bytes(needed_bytes)} in all, and {show_bytes(there_bytes)} are free here; spread them over hosts (run --nnodes N, "
            "regista deploy), or plan for fewer devices (--cluster local:2)"
        )
