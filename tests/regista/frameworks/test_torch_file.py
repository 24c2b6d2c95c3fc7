"""``regista export PLAN --to torch``: a file of torch alone trains as the Plan does, or what it cannot say is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import regista
from planner.frontend import Program
from planner.ir.errors import Unsupported
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from regista.api import program_of
from regista.cli import main
from regista.frameworks import TorchSplit, Way, torch_file, torch_split

MLP, GPT = "zoo:mlp?batch=16&width=32&hidden=64", "zoo:gpt?batch=8&layers=2&width=32&heads=2&seq=16"
DATA = ("input.0=S(0)",)
PLANS: dict[str, tuple[str, str, dict[str, object], Way]] = {
    "data": (MLP, "local:2", {"pins": DATA}, Way.REPLICATED),
    "data, ZeRO 1": (GPT, "local:2", {"pins": DATA, "zero": 1}, Way.REPLICATED),
    "data, ZeRO 2, micro-batches": (GPT, "local:2", {"pins": DATA, "zero": 2, "micro_batches": 2}, Way.SHARDED),
    "data, ZeRO 3": (GPT, "local:2", {"pins": DATA, "zero": 3}, Way.SHARDED),
    "tensor": (GPT, "local:2", {"pins": ("*.c_fc.weight=S(0)", "*.mlp.c_proj.weight=S(1)", "input.0=B")}, Way.PLACED),
    "data and tensor": (
        MLP,
        "local:4",
        {"mesh": (2, 2), "pins": ("input.0=S(0),B", "*.up.weight=B,S(0)", "*.down.weight=B,S(1)")},
        Way.PLACED,
    ),
    "pipeline": (MLP, "local:2", {"stages": 2, "micro_batches": 4}, Way.STAGES),
    "pipeline of data, GPipe": (MLP, "local:4", {"stages": 2, "micro_batches": 4, "pins": DATA, "schedule": "gpipe"}, Way.STAGES),
}


@cache
def planned(name: str) -> tuple[Plan, Program]:
    model, cluster, options, _ = PLANS[name]
    program = program_of(model)
    return regista.plan(program, cluster, model=model, **options), program  # type: ignore[arg-type]


def split_of(name: str) -> TorchSplit:
    return torch_split(*planned(name))


@pytest.mark.processes
@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANS)
def test_a_file_of_torch_alone_has_the_losses_of_the_plan(name: str, tmp_path: Path) -> None:
    plan, program = planned(name)
    wanted = regista.run(plan, program, steps=3).losses
    path = tmp_path / "train.py"
    path.write_text(torch_file(torch_split(plan, program)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plan.num_ranks}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    losses = [float(loss) for loss in re.findall(r"^step \d: loss (\S+)$", done.stdout, re.MULTILINE)]
    assert done.returncode == 0, done.stderr[-2000:]
    assert losses == pytest.approx(wanted, rel=1e-5)


@pytest.mark.representatives("data, ZeRO 3", "data and tensor")
@pytest.mark.parametrize("name", PLANS)
def test_each_split_goes_by_the_means_that_torch_has_for_it(name: str) -> None:
    split = split_of(name)
    assert split.way is PLANS[name][3]
    compile(torch_file(split), "train.py", "exec")


def test_parameters_lie_where_the_plan_has_them_and_stages_begin_at_their_first_module() -> None:
    placed = split_of("data and tensor")
    assert placed.parameters["blocks.0.up.weight"] == (None, 0)
    assert placed.parameters["blocks.0.down.weight"] == (None, 1)
    assert placed.inputs[0] == (0, None)
    assert split_of("pipeline").split_points == ("blocks.1",)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(torch.relu(self.first(x)))
        return made


def test_what_torch_has_no_word_for_is_refused_by_name() -> None:
    loss = nn.functional.mse_loss
    tied = Program(_Tied(), (torch.randn(8, 4), torch.randn(8, 4)), loss)
    with pytest.raises(Unsupported, match=r"second\.weight is tied.*stages share no parameter"):
        torch_split(regista.plan(tied, "local:2", stages=2, micro_batches=2, cuts=("second",)), tied)
    program = program_of(MLP)
    with pytest.raises(Unsupported, match="zb-h1: the file is written for 1f1b, gpipe"):
        torch_split(regista.plan(program, "local:2", stages=2, micro_batches=4, schedule="zb-h1"), program)
    mixed = program.in_formats("bf16-mixed", None)
    with pytest.raises(Unsupported, match="precision, which the file does not carry"):
        torch_split(regista.plan(mixed, "local:2", precision="bf16-mixed"), mixed)
    with pytest.raises(Unsupported, match="is an evaluation"):
        torch_split(regista.plan(program, "local:2", mode="eval"), program)


def test_a_refused_export_writes_nothing_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = program_of(MLP)
    save_plan(regista.plan(program, "local:2", model=MLP, mode="eval"), str(tmp_path / "plan.json"))
    for extra in ([str(tmp_path / "plan.json"), "--to", "torch"], [str(tmp_path / "plan.json")] * 2 + ["--to", "torch"]):
        assert main(["export", *extra, "-o", str(tmp_path / "train.py")]) == 2
        assert len(capsys.readouterr().err.strip()) > 20
    assert not (tmp_path / "train.py").exists()
