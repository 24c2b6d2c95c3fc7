"""What the verbs print: one screen each, on a small plan and on one for 1,024 devices, at 80 and 160 columns, as the committed files say.

``make screens`` (pytest's --update-screens) writes the files anew, and the screens that the README shows with them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import TINY
from rich.console import Console, RenderableType

import regista.verbs.screen as screen
from regista.cli import main
from regista.verbs.fitting import LINES

GOLDEN = Path(__file__).parent / "screens"
README = Path(__file__).parents[3] / "README.md"
WIDTHS = (80, 160)

SMALL = "zoo:gpt?layers=12&width=768&heads=12&vocab=50304&batch=64&seq=1024"
LARGE = "zoo:gpt3?layers=8&batch=256&dtype=bf16"

PLANS: Mapping[str, Sequence[str]] = {
    "small": ("plan", SMALL, "--cluster", "dgx-a100:1", "-o", "small.json"),
    "large": (
        *("plan", LARGE, "--cluster", "dgx-a100:128", "--stages", "8", "--mesh", "16,8"),
        *("--micro-batches", "8", "-o", "large.json"),
    ),
}
DATA = {"small": "synthetic:int64[1024]:50304,int64[1024]:50304", "large": "synthetic:int64[2048]:51200,int64[2048]:51200"}

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
    """Without what a clock said."""
    return re.sub(r"^(took +).*", r"\1...", line)


@dataclass(frozen=True)
class Asked:
    """Runs command lines in a folder of its own and keeps the parts of what they print."""

    folder: Path
    screens: dict[str, Screen]

    def __call__(self, *arguments: str) -> Screen:
        parts: list[RenderableType] = []
        before = Path.cwd()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(screen, "print_parts", lambda console, given, full=False: parts.extend(given))
            os.chdir(self.folder)
            try:
                assert main(arguments) == 0, arguments
            finally:
                os.chdir(before)
        return Screen(tuple(parts))

    def plan(self, size: str) -> Screen:
        if size not in self.screens:
            self.screens[size] = self(*PLANS[size])
        return self.screens[size]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("screens")
    (folder / "job.toml").write_text(JOB)
    (folder / "gpt3.sh").write_text(MEGATRON)
    return Asked(folder, {})


def of_plan(size: str) -> Mapping[str, Sequence[str]]:
    """Name of a screen -> the command line that prints it."""
    file = f"{size}.json"
    return {
        "explain": ("explain", file, "--top", "3", "--seconds", "100"),
        "verify": ("verify", file),
        "simulate": ("simulate", file),
        "whatif": ("whatif", file, "--set", "cluster.links.nic.bandwidth_GBps=50", "-o", f"{size}-changed.json"),
        "diff": ("diff", file, f"{size}-changed.json"),
        "sensitivity": ("sensitivity", file),
        "loading": ("loading", file, "--data", DATA[size], "-o", f"{size}-loading.json"),
        **({"quotas": ("quotas", file, "--full-throughput", "-o", "lean.json")} if size == "small" else {}),
    }


WITHOUT_PLAN: Mapping[str, Sequence[str]] = {
    "clusters": ("clusters",),
    "ops": ("ops",),
    "ops_core": ("ops", "--core"),
    "ops_of_a_model": ("ops", "--model", "zoo:gpt"),
    "predict": ("predict", "job.toml"),
    "advise": ("advise", "gpt3.sh", "--cluster", "dgx-h100:128", "--tries", "8", "--seconds", "600"),
}


def compare(name: str, shown: Screen, update: bool) -> None:
    for columns in WIDTHS:
        assert shown.lines(columns) <= LINES
        golden = GOLDEN / f"{name}_{columns}.txt"
        if update:
            golden.write_text(shown.text(columns))
        assert shown.text(columns) == golden.read_text()


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-screens"))


@pytest.mark.thorough
@pytest.mark.parametrize("size", PLANS)
def test_plan_answers_on_one_screen(asked: Asked, size: str, update: bool) -> None:
    compare(f"{size}_plan", asked.plan(size), update)


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "name"), [(size, name) for size in PLANS for name in of_plan(size)])
def test_every_verb_on_a_plan_answers_on_one_screen(asked: Asked, size: str, name: str, update: bool) -> None:
    asked.plan(size)
    if name == "diff" and not (asked.folder / f"{size}-changed.json").exists():
        asked(*of_plan(size)["whatif"])
    compare(f"{size}_{name}", asked(*of_plan(size)[name]), update)


@pytest.mark.representatives("clusters", "predict")
@pytest.mark.parametrize("name", WITHOUT_PLAN)
def test_a_verb_without_a_plan_answers_on_one_screen(asked: Asked, name: str, update: bool) -> None:
    compare(name, asked(*WITHOUT_PLAN[name]), update)


def test_the_readme_shows_the_screens_as_they_are(update: bool) -> None:
    text = README.read_text()

    def block(found: re.Match[str]) -> str:
        screen_text = (GOLDEN / f"{found[1]}.txt").read_text()
        return f"<!-- screen {found[1]} -->\n```\n{screen_text}```\n<!-- end of screen -->"

    shown, blocks = re.subn(r"<!-- screen (\w+) -->\n.*?<!-- end of screen -->", block, text, flags=re.DOTALL)
    if update:
        README.write_text(shown)
    assert blocks == 4 and shown == README.read_text()


@pytest.mark.thorough
@pytest.mark.processes
def test_a_verb_that_measures_or_draws_answers_on_one_screen(asked: Asked) -> None:
    asked("plan", TINY, "--cluster", "local:2", "--stages", "2", "--micro-batches", "8", "-o", "tiny.json")
    for arguments in (
        ("run", "tiny.json", "--steps", "3", "--checkpoint", "saves", "-o", "run.json"),
        ("simulate", "tiny.json", "-o", "sim.json"),
        ("compare", "sim.json", "run.json"),
        ("checkpoint", "show", "saves"),
        ("doctor",),
        ("quotas", "tiny.json", "--pareto"),
        ("gantt", "sim.json", "-o", "gantt.png"),
        ("timeline", "sim.json", "-o", "timeline.html"),
        ("export", "sim.json", "run.json", "-o", "timeline.json"),
        ("report", "sim.json", "run.json", "--out", "page.html"),
        ("calibrate", "tiny.json", "-o", "cost.json"),
        ("search-time", "--layers", "1,2", "--methods", "greedy", "-o", "times.png"),
    ):
        shown = asked(*arguments)
        assert shown.parts and all(0 < shown.lines(columns) <= LINES for columns in WIDTHS), arguments
