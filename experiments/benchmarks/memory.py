"""How large a worker's process is beside what its Plan says, and what that costs.  ``python -m experiments.benchmarks.memory``

    plan          all blocks and the largest workspace of each stream, and the blocks of other ranks that are mapped (theory)
    process       peak of resident memory during the acts, less what was resident before the first block (run)
    processor     time of all threads of a process per step, without the first steps, in which layouts are learned (run)

    keeping       values inside fragments lie on the heap, which keeps what is freed: quick and large
    tight         on the heap, which gives back what is freed: small and slow
    workspace     in homes that are planned and allocated once (backend.ops.workspace): what workers do unless they are told otherwise

The settings take turns within one run of this script, round by round, so that a busy machine is as busy for each of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

import regista
from backend.memory.options import MemoryOptions
from backend.worker.registers import RUNTIME_BYTES
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["SETTINGS", "Row", "main", "rows"]

MODEL = "zoo:gpt?layers=4&width=512&heads=8&batch=16&seq=128"
WAYS: Mapping[str, Mapping[str, object]] = {
    "data parallel": {"pins": ("input.0=S(0)",)},
    "pipeline, 4 micro-batches": {"stages": 2, "micro_batches": 4},
}
SETTINGS: Mapping[str, MemoryOptions] = {
    "keeping": MemoryOptions(workspace=False),
    "tight": MemoryOptions(workspace=False, return_freed=True),
    "workspace": MemoryOptions(),
}
FEW, MANY = 3, 9
"""Steps of the two runs whose difference is what a step takes."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank, one run.  ``process_bytes`` without the stated constant, backend.worker.registers.RUNTIME_BYTES.

    heap_bytes: the most that values of one fragment took on the heap for want of workspace.   processor_s, step_s: mean of the steps after FEW.
    """

    way: str
    setting: str
    rank: int
    allocated_bytes: int
    planned_bytes: int
    workspace_bytes: int
    heap_bytes: int
    device_bytes: int
    process_bytes: int
    processor_s: float
    step_s: float


def rows(rounds: int = 1) -> list[Row]:
    """Run every way with every setting, ``rounds`` times, in turns."""
    measured: list[Row] = []
    program = program_of(MODEL)
    for way, options in WAYS.items():
        plan = regista.plan(program, resolve_cluster("local:2"), **options)  # type: ignore[arg-type]
        for _ in range(rounds):
            for setting, memory_options in SETTINGS.items():
                few = regista.run(plan, program, steps=FEW, memory=memory_options)
                many = regista.run(plan, program, steps=MANY, memory=memory_options)
                step_s = fmean(many.trace.step_times_s(plan)[FEW:])
                for rank, memory in many.memory.items():
                    measured.append(
                        Row(
                            way=way,
                            setting=setting,
                            rank=rank,
                            allocated_bytes=memory["allocated_bytes"],
                            planned_bytes=memory["planned_bytes"],
                            workspace_bytes=memory["workspace_bytes"],
                            heap_bytes=memory["workspace_heap_bytes"],
                            device_bytes=memory["device_bytes"] + memory["mapped_bytes"],
                            process_bytes=memory["process_peak_bytes"] - memory["base_bytes"] - RUNTIME_BYTES,
                            processor_s=(memory["processor_ns"] - few.memory[rank]["processor_ns"]) / 1e9 / (MANY - FEW),
                            step_s=step_s,
                        )
                    )
    return measured


def _spread(values: list[float]) -> str:
    return f"{median(values):.0f} ({min(values):.0f}..{max(values):.0f})"


def main(rounds: int = 1) -> None:
    columns = (
        "plan",
        "values inside",
        "rank",
        "blocks MiB",
        "workspace MiB (no room)",
        "plan MiB (theory)",
        "process MiB (run)",
        "run/theory",
    )
    table = Table(
        *columns,
        "processor ms/step (run)",
        "step ms (run)",
        title=f"{MODEL}; process less {RUNTIME_BYTES // MIB} MiB; load {os.getloadavg()[0]:.1f}",
    )
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows(rounds):
        groups.setdefault((row.way, row.setting, row.rank), []).append(row)
    for (way, setting, rank), members in groups.items():
        row = max(members, key=lambda r: r.process_bytes)
        assert row.allocated_bytes == row.planned_bytes
        table.add_row(
            way,
            setting,
            str(rank),
            f"{row.allocated_bytes / MIB:.1f}",
            f"{row.workspace_bytes / MIB:.1f} ({row.heap_bytes / MIB:.1f})",
            f"{row.device_bytes / MIB:.1f}",
            f"{row.process_bytes / MIB:.1f}",
            f"{row.process_bytes / row.device_bytes:.3f}",
            _spread([r.processor_s * 1e3 for r in members]),
            _spread([r.step_s * 1e3 for r in members]),
        )
    Console(width=190).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
