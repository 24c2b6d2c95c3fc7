"""How large a worker's process is beside what its Plan says.  ``python -m experiments.bench_memory``

    plan          all blocks and the largest workspace of each stream, and the blocks of other ranks that are mapped (theory)
    process       peak of resident memory during the acts, less what was resident before the first block (run)

The workers' allocator keeps freed workspace, which is quicker and larger; ``tight`` gives it back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import regista
from backend.registers import RUNTIME_BYTES
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["Row", "main", "rows"]

MODEL = "zoo:gpt?layers=4&width=512&heads=8&batch=16&seq=128"
WAYS: Mapping[str, Mapping[str, object]] = {
    "data parallel": {"pins": ("input.0=S(0)",)},
    "pipeline, 4 micro-batches": {"stages": 2, "micro_batches": 4},
}
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank.  All in bytes; ``process_bytes`` without the stated constant, backend.registers.RUNTIME_BYTES."""

    way: str
    malloc: str
    rank: int
    allocated_bytes: int
    planned_bytes: int
    device_bytes: int
    process_bytes: int


def rows(steps: int = 3) -> list[Row]:
    """Run every way with both settings of the allocator."""
    found: list[Row] = []
    program = program_of(MODEL)
    before = os.environ.get("REGISTA_MALLOC")
    try:
        for way, options in WAYS.items():
            plan = regista.plan(program, resolve_cluster("local:2"), **options)  # type: ignore[arg-type]
            for malloc in ("", "tight"):
                os.environ["REGISTA_MALLOC"] = malloc
                for rank, memory in regista.run(plan, program, steps=steps).memory.items():
                    found.append(
                        Row(
                            way=way,
                            malloc=malloc or "keeping",
                            rank=rank,
                            allocated_bytes=memory["allocated_bytes"],
                            planned_bytes=memory["planned_bytes"],
                            device_bytes=memory["device_bytes"] + memory["far_bytes"],
                            process_bytes=memory["process_peak_bytes"] - memory["base_bytes"] - RUNTIME_BYTES,
                        )
                    )
    finally:
        if before is None:
            del os.environ["REGISTA_MALLOC"]
        else:
            os.environ["REGISTA_MALLOC"] = before
    return found


def main() -> None:
    columns = ("plan", "allocator", "rank", "blocks allocated", "blocks planned", "plan MiB (theory)", "process MiB (run)", "run/theory")
    table = Table(*columns, title=f"{MODEL}; process less {RUNTIME_BYTES // MIB} MiB")
    for row in rows():
        sizes = (row.allocated_bytes, row.planned_bytes)
        table.add_row(
            row.way,
            row.malloc,
            str(row.rank),
            *map(str, sizes),
            f"{row.device_bytes / MIB:.1f}",
            f"{row.process_bytes / MIB:.1f}",
            f"{row.process_bytes / row.device_bytes:.3f}",
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
