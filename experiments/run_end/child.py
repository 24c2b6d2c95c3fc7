"""One run in a process of its own: ``python child.py LEAVES MEGABYTES FOLDER``, against whichever checkout PYTHONPATH names.

Prints one row: seconds from the end of the last act to the return of ``regista.run``, and how far the launcher's peak of resident memory then stood
above what was resident at the last step but one.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regista
from backend.memory.options import MemoryOptions

STEPS = 6
WIDTH = 512


def memory_bytes() -> tuple[int, int]:
    """(resident now, its peak) of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if name in ("VmRSS", "VmHWM")}
    return sizes["VmRSS"], sizes["VmHWM"]


def main(leaves: str, megabytes: int, folder: str) -> None:
    torch.manual_seed(0)
    rows = max(1, megabytes * 1_000_000 // (4 * WIDTH))
    module = nn.Sequential(nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, 2))
    inputs = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    program = regista.Program(module, inputs, nn.functional.cross_entropy)
    # Each rank holds half of the large parameter, and of its gradient.
    plan = regista.plan(program, "local:2", pins=("0.weight=S(1)",))
    ended_ns: list[int] = []
    at_end: list[int] = []
    merging = import_module("backend.run_folder.merge")  # its room has a function of the same name
    assemble = merging.assemble

    def watched(plan: Any, **given: Any) -> Any:
        ended_ns.append(max(row[4] for of_rank in given["rows"].values() for row in of_rank))
        return assemble(plan, **given)

    merging.assemble = watched  # type: ignore[attr-defined]

    def on_progress(step: int, loss: float) -> None:
        if step == STEPS - 2:
            Path("/proc/self/clear_refs").write_text("5")
            at_end.append(memory_bytes()[0])

    more: dict[str, Any] = {"none": {"keep_states": False}, "checkpoint": {"checkpoint": folder}}.get(leaves, {})
    if leaves == "files":
        more = {"memory": MemoryOptions(shared_memory=False)}
    outcome = regista.run(plan, program, steps=STEPS, on_progress=on_progress, timeout_s=120, **more)
    end_ns = time.monotonic_ns()
    grown = memory_bytes()[1] - at_end[0]
    before_s = time.monotonic()
    if leaves != "none":
        assert outcome.states["1.weight"].shape == (2, WIDTH)
    row = {
        "kind": "run",
        "leaves": leaves,
        "state_MB": rows * WIDTH * 4 / 1e6,
        "end_s": round((end_ns - ended_ns[0]) * 1e-9, 4),
        "launcher_grown_MB": round(grown / 1e6, 2),
        "one_tensor_s": round(time.monotonic() - before_s, 5),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
