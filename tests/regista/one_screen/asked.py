"""Command lines whose answers are kept, not printed, so that one answer is printed at several widths; and the files that they need."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from command_line import TINY
from rich.console import Console, RenderableType

import regista.cli as cli
import regista.server.verb as serve
import regista.verbs.screen as screen
from backend.checkpoint.manifest import MANIFEST, Manifest, SavedFile, SavedPiece, SavedState, manifest_text
from backend.launch import host
from planner.cost import AnalyticCost
from planner.ir.files import load_plan, load_trace, save_trace
from planner.ir.graph import InputKind
from planner.ir.tensor import DType
from planner.ir.traces.trace import Act, Source
from planner.ir.units import GIB
from simulator.engine import Engine, simulate

__all__ = ["WIDTHS", "Asked", "Screen"]

WIDTHS = (80, 160)

SMALL = "zoo:gpt?layers=12&width=768&heads=12&vocab=50304&batch=64&seq=1024"
LARGE = "zoo:gpt3?layers=8&batch=256&dtype=bf16"
WIDE = "zoo:mlp?batch=1024&width=64&hidden=64&depth=1"
"""Of so few tasks that a trace of 1,024 ranks is drawn in seconds."""

JOB = """[model]
family = "llama3-8b"
[cluster]
name = "dgx-h100:16"
[layout]
tp = 2
pp = 4
zero = 1
global_batch = 128
"""

MEGATRON = """pretrain_gpt.py --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size 50257 \\
  --tensor-model-parallel-size 16 --pipeline-model-parallel-size 8 --sequence-parallel --micro-batch-size 1 --global-batch-size 512 \\
  --use-distributed-optimizer --bf16 --qk-layernorm --lr 6e-5 --save /data/gpt3
"""

TRAINING = f"""[train]
model = "{TINY}"
steps = 4
eval_every = 2
cluster = "CLUSTER"
[plan]
stages = 1
"""

SWEEP = """claim = "Optimizer state that is kept in parts lowers memory"
source = "tests"
performer = "sim"
axes = ["zero"]
expect = ["peak[zero == 1] <= peak[zero == 0]"]
[model]
name = "zoo:mlp"
width = 64
batch = 2048
[plan]
stages = 1
zero = [0, 1]
pins = "input.*=S(0)"
[cluster]
name = "CLUSTER"
"""

CONTEST = {
    "problem": {
        "name": "small",
        "nodes": {"intervals": [[0, 4], [3, 6], [2, 2]], "costs": [[5, 2], [0, 3, 9], [1]], "usages": [[1, 8], [4, 4, 1], [100]]},
        "edges": {"nodes": [[0, 1]], "costs": [[4, 10**18, 8, 0, 7, 6]]},
        "usage_limit": 1000,
    }
}


@dataclass(frozen=True)
class Screen:
    """One answer, printed at any width."""

    parts: tuple[RenderableType, ...]

    def text(self, columns: int) -> str:
        console = Console(width=columns, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        screen.print_parts(console, self.parts)
        return "".join(f"{_steady(line.rstrip())}\n" for line in console.export_text().rstrip("\n").split("\n"))

    def lines(self, columns: int) -> int:
        """Lines of a terminal: a text that is longer than its width takes several."""
        return sum(max(1, -(-len(line) // columns)) for line in self.text(columns).rstrip("\n").split("\n"))


def _steady(line: str) -> str:
    """Without what a clock said, and what a server draws."""
    line = re.sub(r"(127\.0\.0\.1):\d+", r"\1:PORT", re.sub(r"token=\S+", "token=TOKEN", line))
    return re.sub(r"^(took +|seconds  +).*", r"\1...", line)


@dataclass(frozen=True)
class Asked:
    """Runs command lines in a folder of its own and keeps the parts of what they print."""

    folder: Path
    screens: dict[Sequence[str], Screen] = field(default_factory=dict)

    def __call__(self, *arguments: str, code: int = 0) -> Screen:
        """What a command line answers; of a file of COMMANDS alone, what the command that writes it does."""
        command = COMMANDS[arguments[0]] if len(arguments) == 1 and arguments[0] in COMMANDS else arguments
        if command not in self.screens:
            for word, before in zip(command, ("", *command), strict=False):
                if before not in ("-o", "--out", "--checkpoint"):
                    self.make(word)
            self.screens[command] = self._ask(command, code)
        return self.screens[command]

    def make(self, file: str) -> None:
        """Write one of the files that command lines read; nothing if it is there, or none of them."""
        path = self.folder / file
        if path.exists():
            return
        if file in TEXTS:
            path.write_text(TEXTS[file])
        elif file in COMMANDS:
            self(file)
        elif file in WRITERS:
            WRITERS[file](self)

    def _ask(self, command: Sequence[str], code: int) -> Screen:
        parts: list[RenderableType] = []
        before = Path.cwd()

        def refuse(given: object, as_json: bool, kind: str, message: str, code: int) -> int:
            parts.append(f"regista {command[0]}: {message}")
            return code

        async def until_ready(*given: object) -> None:
            ready = given[-1]
            assert callable(ready)
            ready()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(screen, "print_parts", lambda console, given, full=False: parts.extend(given))
            patch.setattr(cli, "_refuse", refuse)
            patch.setattr(serve, "_serve", until_ready)
            patch.setattr(host, "free_bytes", lambda: 8 * GIB)
            os.chdir(self.folder)
            try:
                assert cli.main(command) == code, (command, parts)
            finally:
                os.chdir(before)
        return Screen(tuple(part.replace(str(self.folder), "FOLDER") if isinstance(part, str) else part for part in parts))


def _simulated(size: str) -> Callable[[Asked], None]:
    """A trace of the engine that gives no link to two tasks at once: in seconds, also of 1,024 ranks."""

    def write(asked: Asked) -> None:
        asked.make(f"{size}.json")
        plan = load_plan(asked.folder / f"{size}.json")
        save_trace(plan, simulate(plan, AnalyticCost(plan.cluster), steps=3, engine=Engine.COMPILED), asked.folder / f"{size}-sim.json")

    return write


def _measured(size: str) -> Callable[[Asked], None]:
    """The same trace, every act 5 % later and longer, as a run's: what a comparison says of it is the same everywhere."""

    def write(asked: Asked) -> None:
        asked.make(f"{size}-sim.json")
        plan, sim = load_trace(asked.folder / f"{size}-sim.json")
        acts = tuple(Act(a.task, a.rank, a.number, 1.05 * a.ready_s, 1.05 * a.start_s, 1.05 * a.end_s) for a in sim.acts)
        run = replace(
            sim, source=Source.RUN, performer="gloo", acts=acts, losses=(2.5, 2.4, 2.3), message_s={}, peak_bytes=sim.register_bytes
        )
        save_trace(plan, run, asked.folder / f"{size}-run.json")

    return write


def _wide_saves(asked: Asked) -> None:
    """A checkpoint of 1,024 ranks, of which each has written a row of one parameter; its files are not there, only what is said of them."""
    names = [f"rank{rank:04}.pt" for rank in range(1024)]
    pieces = tuple(SavedPiece(file=name, box=((rank, 1), (0, 64))) for rank, name in enumerate(names))
    state = SavedState(name="weight", kind=InputKind.PARAMETER, shape=(1024, 64), dtype=DType.FLOAT32, pieces=pieces)
    manifest = Manifest(
        plan_id="0" * 16,
        model=WIDE,
        step=100,
        next_batch=100,
        num_ranks=1024,
        states=(state,),
        groups=(),
        files=tuple(SavedFile(name=name, size_bytes=1024, crc32=0) for name in names),
    )
    folder = asked.folder / "wide-saves" / "step-00000100"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(manifest_text(manifest))


COMMANDS: Mapping[str, Sequence[str]] = {
    "small.json": ("plan", SMALL, "--cluster", "dgx-a100:1", "-o", "small.json"),
    "large.json": (
        *("plan", LARGE, "--cluster", "dgx-a100:128", "--stages", "8", "--mesh", "16,8"),
        *("--micro-batches", "8", "-o", "large.json"),
    ),
    "wide.json": (
        *("plan", WIDE, "--cluster", "dgx-a100:128", "--stages", "2", "--mesh", "512"),
        *("--micro-batches", "1", "-o", "wide.json"),
    ),
    "tiny.json": ("plan", TINY, "--cluster", "local:2", "--stages", "2", "--micro-batches", "8", "-o", "tiny.json"),
    **{
        f"{size}-changed.json": ("whatif", f"{size}.json", "--set", "cluster.links.nic.bandwidth_GBps=50", "-o", f"{size}-changed.json")
        for size in ("small", "large")
    },
    "tiny-run.json": ("run", "tiny.json", "--steps", "3", "--checkpoint", "saves", "-o", "tiny-run.json"),
}
"""File -> the command line that writes it, with the files that it needs before."""

TEXTS: Mapping[str, str] = {
    "job.toml": JOB,
    "gpt3.sh": MEGATRON,
    "train.toml": TRAINING.replace("CLUSTER", "local:2"),
    "train-large.toml": TRAINING.replace("CLUSTER", "dgx-a100:128"),
    "small-sweep.toml": SWEEP.replace("CLUSTER", "dgx-a100:1"),
    "large-sweep.toml": SWEEP.replace("CLUSTER", "dgx-a100:128"),
    "contest.json": json.dumps(CONTEST),
}
WRITERS: Mapping[str, Callable[[Asked], None]] = {
    **{f"{size}-sim.json": _simulated(size) for size in ("small", "wide")},
    **{f"{size}-run.json": _measured(size) for size in ("small", "wide")},
    "saves": lambda asked: asked.make("tiny-run.json"),
    "wide-saves": _wide_saves,
}
