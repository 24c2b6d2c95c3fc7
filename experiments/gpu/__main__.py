"""Every GPU test, measurement and figure in one go, into one folder, in less than 8 minutes and without network.

    python -m experiments.gpu                       all of it on cuda:0, into out/gpu
    python -m experiments.gpu --device fake --small  the same code on lanes without hardware (its times say nothing about GPUs)
    python -m experiments.gpu --only actors         one part

Each part is a process of its own under its own time limit, so that one that fails does not stop the others.  Exit codes: 0 all parts ended
well, 1 some did not, 3 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.table import Table

from experiments.gpu.figure import draw, gathered
from experiments.gpu.parts import PARTS, measure
from planner.ir.errors import RegistaError

__all__ = ["LIMITS_S", "NO_DEVICE", "Ended", "about", "main", "perform"]

NO_DEVICE = 3
"""Exit code where there is no CUDA device."""

LIMITS_S: Mapping[str, float] = {
    "tests": 100.0,
    "actors": 50.0,
    "recompute": 70.0,
    "offload": 70.0,
    "stages": 70.0,
    "hetero": 50.0,
    "overhead": 40.0,
}
"""Time limit of each part; together below 8 minutes."""

GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a part ended: ``ok``, ``failed (exit code n)`` or ``over its n s``."""

    part: str
    state: str
    seconds: float
    log: str


def about(device: str) -> dict[str, str]:
    """Hardware and versions, for every figure that is quoted."""
    facts = {
        "device": device,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "omp_threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(torch.device(device))
        facts |= {
            "gpu": properties.name,
            "gpu_memory_bytes": str(properties.total_memory),
            "gpu_processors": str(properties.multi_processor_count),
        }
        facts |= {"gpu_capability": f"{properties.major}.{properties.minor}", "tf32": str(torch.backends.cuda.matmul.allow_tf32)}
    return facts


def perform(part: str, command: Sequence[str], out: Path, limit_s: float) -> Ended:
    """Run one part in a session of its own, its words into a log; what is left of it after the limit is killed."""
    log = out / f"{part}.log"
    begin = time.monotonic()
    with log.open("wb") as words:
        process = subprocess.Popen(command, stdout=words, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=limit_s)
            state = "ok" if code == 0 else f"failed (exit code {code})"
        except subprocess.TimeoutExpired:
            state = f"over its {limit_s:g} s"
            _end(process)
        except BaseException:
            _end(process)
            raise
    return Ended(part=part, state=state, seconds=time.monotonic() - begin, log=str(log))


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _command(part: str, arguments: argparse.Namespace, out: Path) -> list[str]:
    if part == "tests":
        return [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-v", "-p", "no:cacheprovider", f"--junitxml={out / 'tests.xml'}"]
    small = ["--small"] if arguments.small else []
    return [sys.executable, "-m", "experiments.gpu", "--only", part, "--device", arguments.device, "--out", str(out), *small]


def _show(ended: Sequence[Ended], rows: pd.DataFrame, facts: Mapping[str, str], out: Path) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a file or a pipe has no width of its own
    table = Table(title=f"parts on {facts.get('gpu', facts['device'])}, torch {facts['torch']}")
    for heading in ("part", "state", "s"):
        table.add_column(heading)
    for end in ended:
        table.add_row(end.part, end.state, f"{end.seconds:.1f}")
    console.print(table)
    table = Table(title="predicted before it was measured")
    for heading in ("part", "setting", "quantity", "unit", "sim", "run", "run / sim"):
        table.add_column(heading)
    for _, row in rows.iterrows():
        sim, run = row["sim"], row["run"]
        ratio = f"{run / sim:.2f}" if pd.notna(sim) and sim else ""
        shown = "" if pd.isna(sim) else f"{sim:.4g}"
        table.add_row(row["part"], row["setting"], row["quantity"], row["unit"], shown, f"{run:.4g}", ratio)
    console.print(table)
    console.print(f"everything is in {out}", markup=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu", description="every GPU test, measurement and figure in one go")
    parser.add_argument("--out", default="out/gpu", type=Path, help="folder for everything (default out/gpu)")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or fake or cpu to try the code without a GPU (default cuda:0)")
    parser.add_argument("--small", action="store_true", help="tiny models: to try the code, not to measure")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part, in this process")
    arguments = parser.parse_args(argv)
    device, out = str(arguments.device), arguments.out.resolve()
    if device.startswith("cuda") and not torch.cuda.is_available():
        print(
            f"no CUDA device: torch {torch.__version__} sees none, so nothing is measured; --device fake --small tries the code",
            file=sys.stderr,
        )
        return NO_DEVICE
    if arguments.only:
        try:
            print(measure(arguments.only, device, out / arguments.only, small=arguments.small))
        except RegistaError as error:
            print(f"{arguments.only}: {error}", file=sys.stderr)
            return 1
        return 0
    out.mkdir(parents=True, exist_ok=True)
    facts = about(device)
    (out / "about.json").write_text(json.dumps(facts, indent=1) + "\n")
    # pytest's tests of GPUs are skipped where there is none: without one they would say "ok" and mean nothing.
    parts = [part for part in LIMITS_S if part != "tests" or device.startswith("cuda")]
    ended = [perform(part, _command(part, arguments, out), out, LIMITS_S[part]) for part in parts]
    pd.DataFrame([{"part": e.part, "state": e.state, "seconds": round(e.seconds, 1)} for e in ended]).to_csv(out / "parts.csv", index=False)
    rows = gathered(out)
    draw(rows, out / "steps.png", f"{facts.get('gpu', device)}, torch {facts['torch']}, {facts['date']}")
    _show(ended, rows, facts, out)
    return 0 if all(end.state == "ok" for end in ended) else 1


if __name__ == "__main__":
    sys.exit(main())
