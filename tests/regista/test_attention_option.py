"""The form of attention from the command line: recorded in the Plan, and the one in which it is performed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command, commands

import regista.api as api
from planner.ir.files import load_plan
from planner.ir.plan import Fragment, Plan

MODEL = """
import torch
from torch import nn
from regista import Program

def model():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Program(layer, (torch.randn(4, 6, 8), torch.randn(4, 6, 8)), nn.functional.mse_loss)
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def targets(plan: Plan) -> set[str]:
    return {op.target for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops}


def test_attention_is_fused_unless_it_is_asked_for_eager_and_both_have_the_same_losses(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    losses = {}
    for form, options in {"fused": [], "eager": ["--attention", "eager"]}.items():
        out = tmp_path / f"{form}.json"
        assert command("plan", f"{tmp_path}/model.py:model", "--cluster", "local:2", *options, "-o", str(out)).code == 0
        plan = load_plan(out)
        assert plan.options.get("attention", "fused") == form
        assert ("regista.attention" in targets(plan)) is (form == "fused")
        losses[form] = api.run(plan, steps=2, performer=api.Performer.REFERENCE).losses
    assert losses["fused"] == pytest.approx(losses["eager"], rel=1e-6)


def test_an_unknown_form_is_refused(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    ran = command("plan", "zoo:mlp", "--cluster", "local:2", "--attention", "flash", "-o", str(out))
    assert (ran.code, out.exists()) == (2, False) and "'flash'" in ran.err and "eager" in ran.err
