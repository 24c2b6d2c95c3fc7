"""Every GPU test, measurement and figure in one go, into one folder, in less than 8 minutes and without network.

    python -m experiments.gpu                        all of it on cuda:0, into out/gpu
    python -m experiments.gpu --device fake --small  the same code on lanes without hardware (its times say nothing about GPUs)
    python -m experiments.gpu --only actors          one part
    python -m experiments.gpu --publish              what out/gpu holds, to experiments/results/gpu and experiments/figures, to be committed

Each part is a process of its own under its own time limit, so that one that fails does not stop the others; its rows are there as soon as they
were measured.  A second call goes on: parts that ended well on the same device and torch are kept (--again measures them anew).  At the end stands
which lines hold that a run on a GPU must show.  Exit codes: 0 all parts ended well, 1 some did not, 3 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.table import Table

from backend.devices.facts import device_facts
from backend.devices.opening import open_device
from experiments.gpu.figure import draw, gathered
from experiments.gpu.must_show import Line, lines
from experiments.gpu.parts import PARTS, measure
from experiments.gpu.publish import publish
from planner.ir.errors import RegistaError

__all__ = ["LIMITS_S", "NO_DEVICE", "Ended", "about", "main", "perform"]

NO_DEVICE = 3
"""Exit code where there is no CUDA device."""

LIMITS_S: Mapping[str, float] = {
    "kernels": 90.0,
    "transparency": 60.0,
    "gpt2": 110.0,
    "resnet50": 75.0,
    "predicted": 90.0,
    "actors": 30.0,
    "overhead": 30.0,
    "tests": 110.0,
    "offload": 30.0,
    "hetero": 30.0,
}
"""Time limit of each part, in the order of what a lost hour would miss most."""

TOTAL_S = 470.0
"""All parts of one call together: what has not begun by then is left to the next call, which goes on there."""

GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a part ended: ``ok``, ``failed (exit code n)`` or ``over its n s``."""

    part: str
    state: str
    seconds: float
    log: str


def about(device: str) -> dict[str, str]:
    """Hardware, clocks and versions, for every figure that is quoted."""
    opened = open_device("fake:0" if device == "fake" else device)
    try:
        return device_facts(opened)
    finally:
        opened.close()


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


def _show(ended: Sequence[Ended], rows: pd.DataFrame, facts: Mapping[str, str], out: Path, held: Sequence[Line]) -> None:
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
    table = Table(title="what a run on a GPU must show")
    for heading in ("line", "asked", "measured", "holds"):
        table.add_column(heading)
    for line in held:
        table.add_row(line.line, line.asked, line.measured, {True: "yes", False: "NO", None: "not measured"}[line.holds])
    console.print(table)
    console.print(f"everything is in {out}", markup=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu", description="every GPU test, measurement and figure in one go")
    parser.add_argument("--out", default="out/gpu", type=Path, help="folder for everything (default out/gpu)")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or fake or cpu to try the code without a GPU (default cuda:0)")
    parser.add_argument("--small", action="store_true", help="tiny models: to try the code, not to measure")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part, in this process")
    parser.add_argument("--again", action="store_true", help="measure parts anew that ended well before")
    parser.add_argument("--publish", action="store_true", help="copy what --out holds to where it is committed")
    arguments = parser.parse_args(argv)
    device, out = str(arguments.device), arguments.out.resolve()
    if arguments.publish:
        return publish(out)
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
    begin, facts = time.monotonic(), about(device)
    known = _known(out, facts) if not arguments.again else {}
    (out / "about.json").write_text(json.dumps(facts, indent=1) + "\n")
    # pytest's tests of GPUs are skipped where there is none: without one they would say "ok" and mean nothing.
    parts = [part for part in LIMITS_S if part != "tests" or device.startswith("cuda")]
    ended: list[Ended] = []
    for part in parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        left_s = TOTAL_S - (time.monotonic() - begin)
        if part in known:
            ended.append(known[part])
        elif left_s < GRACE_S:
            ended.append(Ended(part=part, state=f"not begun in {TOTAL_S:g} s; call again", seconds=0.0, log=""))
        else:
            ended.append(perform(part, _command(part, arguments, out), out, min(LIMITS_S[part], left_s)))
        _write(ended, out)  # so that a call that is interrupted goes on behind it
    rows = gathered(out)
    draw(rows, out / "steps.png", f"{facts.get('gpu', device)}, torch {facts['torch']}, {facts['date']}")
    shown = lines(rows, [asdict(end) for end in ended], out)
    pd.DataFrame([asdict(line) for line in shown]).to_csv(out / "must_show.csv", index=False)
    _show(ended, rows, facts, out, shown)
    return 0 if all(end.state == "ok" for end in ended) else 1


def _write(ended: Sequence[Ended], out: Path) -> None:
    pd.DataFrame([{"part": e.part, "state": e.state, "seconds": round(e.seconds, 1)} for e in ended]).to_csv(out / "parts.csv", index=False)


def _known(out: Path, facts: Mapping[str, str]) -> dict[str, Ended]:
    """Parts that ended well in an earlier call on the same device and torch."""
    try:
        before = json.loads((out / "about.json").read_text())
        parts = pd.read_csv(out / "parts.csv")
    except (OSError, ValueError):
        return {}
    if any(before.get(key) != facts.get(key) for key in ("device", "gpu", "torch", "cuda", "driver_version")):
        return {}
    well = parts[parts["state"] == "ok"]
    return {
        p: Ended(part=p, state="ok", seconds=float(s), log=str(out / f"{p}.log"))
        for p, s in zip(well["part"], well["seconds"], strict=True)
    }


if __name__ == "__main__":
    sys.exit(main())
