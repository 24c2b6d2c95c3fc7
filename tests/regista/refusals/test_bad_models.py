"""Models that cannot be traced or planned are refused by op, module or factory; a loss that is NaN is a warning."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command
from stories import TableCost, chain

from planner.ir.files import load_trace, save_trace
from planner.ir.traces.trace import Source
from simulator import simulate
from tests.regista.refusals.refusal import assert_refused

MODELS = """
import dataclasses, torch
from torch import nn
from regista import Program

class Odd(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)

class Net(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.odd = Odd(f)

    def forward(self, x):
        return self.odd(self.inner(x))

def make(f, **more):
    return Program(Net(f), torch.randn(8, 8), **more)

def quantised(): return make(lambda x: x.to(torch.float8_e5m2).float().mean())
def vector(): return make(lambda x: x)
def number_of(): return make(lambda x: 3)
def pair(): return make(lambda x: (x.mean(), x))
def integer(): return make(lambda x: x.argmax())
def detached(): return make(lambda x: x.detach().mean())
def item(): return make(lambda x: x.mean() * float(x.sum()))
def poisson(): return make(lambda x: (x * torch.poisson(x.abs())).mean())
def shapes(): return make(lambda x: (x @ torch.ones(9, 9)).mean())
def raises(): raise KeyError("boom")
def exits(): raise SystemExit(3)
def number(): return 3
def wants(argument): return argument
def trained(make_optimizer, **more):
    net = Net(lambda x: x.mean())
    return Program(net, torch.randn(8, 8), optimizer=make_optimizer(net.inner), **more)

def empty(): return trained(lambda inner: torch.optim.AdamW([{"params": inner.parameters()}, {"params": []}]))
def overlapping(): return trained(twice)
def foreign(): return trained(lambda inner: torch.optim.AdamW(nn.Linear(3, 3).parameters()))
def attached(): return trained(lambda inner: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(inner.parameters()), 2).optimizer)
def nan_at_once(): return make(lambda x: x.mean(), lr_schedule=lambda step: float("nan"))
def nan_later(): return make(lambda x: x.mean(), lr_schedule=lambda step: 0.1 if step < 3 else float("nan"))
def no_clipping(): return make(lambda x: x.mean(), clip_norm=0.0)

def twice(inner):
    optimizer = torch.optim.SGD([{"params": [inner.weight]}, {"params": [inner.bias]}])
    optimizer.param_groups[1]["params"].append(inner.weight)
    return optimizer

def lion(): return make(lambda x: x.mean(), optimizer="lion")
"""


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("quantised", r"module 'odd' calls \S+: dtype 'torch.float8_e5m2' is not supported"),
        ("vector", r"the loss must be a scalar but the module returned shape \(8, 8\); return the loss"),
        ("number_of", "must return a scalar loss but returned a int"),
        ("pair", "must return a scalar loss but returned a tuple"),
        ("integer", "the loss must be floating"),
        ("detached", "does not depend on any trainable parameter"),
        ("item", "module 'odd' lets a value decide"),
        ("poisson", "module 'odd' draws random numbers"),
        ("shapes", "tracing module 'odd' raised RuntimeError: a and b must have same reduction dim"),
        ("raises", r"m\.py:raises raised KeyError: 'boom'"),
        ("exits", r"m\.py:exits raised SystemExit: 3"),
        ("number", r"m\.py:number returned a int; it must return a planner\.frontend\.Program"),
        ("wants", "missing 1 required positional argument"),
        ("lion", "optimizer 'lion' is unknown"),
        ("empty", "group 1 of torch.optim.AdamW names no parameter"),
        ("overlapping", "parameter inner.weight is in group 0 and in group 1 of torch.optim.SGD"),
        ("foreign", r"parameter 0 of group 0 of torch.optim.AdamW, of shape \[3, 3\], is not one of the module's"),
        ("attached", r"attached to this torch.optim.SGD; give it to the Program, lr_schedule=scheduler"),
        ("nan_at_once", "the learning rate of step 0 is nan in group 0"),
        ("no_clipping", "clip_norm=0.0: the norm must be above 0"),
        ("nope", r"has no function 'nope'; it has .*quantised"),
    ],
)
def test_a_model_that_cannot_be_planned_is_refused_by_op_module_or_factory(command: Command, tmp_path: Path, factory: str, says: str):
    (tmp_path / "m.py").write_text(MODELS)
    assert_refused(command, tmp_path, "plan", f"{tmp_path}/m.py:{factory}", "--cluster", "local:2", "-o", tmp_path / "p.json", says=says)


def test_a_schedule_that_gives_no_number_later_is_refused_before_the_run_writes_anything(command: Command, tmp_path: Path):
    (tmp_path / "m.py").write_text(MODELS)
    plan = tmp_path / "p.json"
    assert command("plan", f"{tmp_path}/m.py:nan_later", "--cluster", "local:1", "-o", plan).code == 0
    says = "the learning rate of step 3 is nan in group 0"
    assert_refused(command, tmp_path, "run", plan, "--steps", 5, "--checkpoint", tmp_path / "saves", "-o", tmp_path / "run.json", says=says)


@pytest.mark.parametrize(
    ("content", "says"),
    [("def f(:\n", "cannot be imported: SyntaxError"), ("import sys; sys.exit(0)\n", "SystemExit"), ("1 / 0\n", "ZeroDivisionError")],
)
def test_a_file_that_cannot_be_imported_is_refused(command: Command, tmp_path: Path, content: str, says: str):
    (tmp_path / "m.py").write_text(content)
    assert_refused(command, tmp_path, "plan", f"{tmp_path}/m.py:f", "--cluster", "local:2", "-o", tmp_path / "p.json", says=says)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("nope.py:f", r"nope\.py does not exist; write zoo:"),
        ("nope.py", "names no factory"),
        ("nope.pt2", r"nope\.pt2 does not exist"),
        ("zoo:nope", "the zoo has no 'nope'; it has alexnet, .*convnet, .*gpt"),
        ("zoo:mlp?bad=1", "unexpected keyword argument 'bad'"),
        ("zoo:mlp?batch", "are not key=value pairs"),
        ("zoo:mlp?batch=8&batch=9", "give a key twice"),
        ("zoo:mlp?batch=0", "at least one sample"),
        ("zoo:mlp?depth=2000000", "depth = 2000000: a model of more than 10000 blocks is not built"),
        ("zoo:mlp?batch=abc", r"raised TypeError: randn\(\) received"),
        ("zoo:gpt?heads=3", "3 heads do not divide a width of 256"),
        ("zoo:mlp?width=999999999999999", "raised RuntimeError"),
        ("", "'' is not a model"),
        ("plan.json", "is not a model; write zoo:"),
    ],
)
def test_a_name_that_is_no_model_is_refused_with_the_forms(command: Command, tmp_path: Path, model: str, says: str):
    assert_refused(command, tmp_path, "plan", model, "--cluster", "local:2", "-o", tmp_path / "p.json", says=says)


def test_a_pt2_that_is_none_or_returns_no_loss_is_refused(command: Command, tmp_path: Path):
    import torch

    (tmp_path / "junk.pt2").write_bytes(b"junk")
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4), (torch.randn(8, 4),)), tmp_path / "vector.pt2")
    goal = ("--cluster", "local:2", "-o", tmp_path / "p.json")
    assert_refused(
        command, tmp_path, "plan", tmp_path / "junk.pt2", *goal, says="is not an exported program; write it with torch.export.save"
    )
    assert_refused(command, tmp_path, "plan", tmp_path / "vector.pt2", *goal, says="a .pt2 must return the loss, one scalar")


# Training that diverges is no bad input.


def test_a_loss_that_is_nan_warns_is_null_in_json_and_survives_the_file(command: Command, tmp_path: Path):
    plan = chain("ab", 1, 1)
    trace = replace(
        simulate(plan, TableCost(), steps=4), source=Source.RUN, performer="story", losses=(1.0, float("inf"), float("nan"), 2.0)
    )
    save_trace(plan, trace, str(tmp_path / "run.json"))
    assert repr(load_trace(str(tmp_path / "run.json"))[1].losses) == "(1.0, inf, nan, 2.0)"
    (tmp_path / "m.py").write_text(
        MODELS + "from regista import SGD\ndef wild(): return make(lambda x: (x ** 2).mean(), optimizer=SGD(lr=1e18))\n"
    )
    assert command("plan", f"{tmp_path}/m.py:wild", "--cluster", "local:1", "-o", tmp_path / "p.json").code == 0
    ran = command("run", tmp_path / "p.json", "--performer", "reference", "--steps", "5", "--json")
    assert ran.code == 0
    assert re.match(r"warning: the loss is (inf|nan) from step \d on; lower the learning rate\n$", ran.err)
    assert None in ran.json["losses"]
