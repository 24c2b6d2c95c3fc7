"""On the command line, too: what a plan would drop is refused with exit code 2 and no file, and what was said is said again."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command, commands

from planner.ir.files import load_plan
from regista.api import planned_program

MODELS = """
import torch
import torch.nn.functional as F
from torch import nn

from planner.frontend import SGD, Program


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x):
        return self.lstm(x)[0]


def counting():
    return Program(Counting(), (torch.ones(4, 4), torch.ones(4, 4)), F.mse_loss)


def hooked():
    module = nn.Linear(4, 4)
    module.weight.register_post_accumulate_grad_hook(lambda p: None)
    return Program(module, (torch.ones(4, 4), torch.ones(4, 4)), F.mse_loss)


def recurrent():
    torch.manual_seed(0)
    return Program(Recurrent(), (torch.ones(6, 4, 3), torch.ones(6, 4, 4)), F.mse_loss, SGD(lr=0.1))


def odd():
    return Program(nn.Linear(5, 7), (torch.ones(4, 5), torch.ones(4, 7)), F.mse_loss, "adamw")
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.mark.parametrize(
    ("factory", "options", "words"),
    [
        ("counting", [], "model.py:16 'return self.linear(x) * self.calls' computes with it"),
        ("hooked", [], "parameter weight has the post-accumulate-grad hook hooked.<locals>.<lambda>"),
        ("recurrent", ["--micro-batches", "2"], "takes dim 0 of its input for time"),
        ("recurrent", ["--batch-dim", "2,0"], "input.0 dim 2 has 3, input.1 dim 0 has 6"),
        ("odd", ["--zero", "1"], "ZeRO level 1 splits nothing on each of 2 devices"),
    ],
)
def test_what_would_be_dropped_is_refused_with_code_2_and_no_file(
    command: Command, tmp_path: Path, factory: str, options: list[str], words: str
) -> None:
    (tmp_path / "model.py").write_text(MODELS)
    ran = command("plan", f"{tmp_path / 'model.py'}:{factory}", "--cluster", "local:2", "-o", tmp_path / "plan.json", *options)
    assert ran.code == 2 and words in " ".join(ran.err.split()), ran
    assert not (tmp_path / "plan.json").exists()


def test_a_batch_dim_that_was_said_is_the_plans_and_stays_with_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODELS)
    path = tmp_path / "plan.json"
    planned = ["plan", f"{tmp_path / 'model.py'}:recurrent", "--cluster", "local:2", "--micro-batches", "2", "--batch-dim", "1", "-o", path]
    shown = command(*planned)
    assert shown.code == 0 and "input.0 dim 1, input.1 dim 1 (as given)" in " ".join(shown.out.split())
    plan = load_plan(path)
    assert plan.batch_size == 4 and planned_program(plan).batch_dims.dims == (1, 1)
    ran = command("run", path, "--performer", "reference", "--steps", "2")
    assert ran.code == 0, ran


def test_how_the_batch_was_found_is_said(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODELS)
    shown = command("plan", f"{tmp_path / 'model.py'}:odd", "--cluster", "local:2", "-o", tmp_path / "plan.json")
    assert "input.0 dim 0, input.1 dim 0 (found: the first input's extent 4 in dim 0" in " ".join(shown.out.split())
