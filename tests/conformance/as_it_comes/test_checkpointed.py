"""torch.utils.checkpoint in a module is a region that the plan computes again: the numbers stay, activations go, flop come."""

from __future__ import annotations

from io import StringIO

import pytest
import torch
import torch.nn.functional as F
from oracle import train_eagerly
from rich.console import Console
from six_ways import SIX_WAYS, assert_trains_alike, planned
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from planner.frontend import SGD, Program
from planner.frontend.tracing.trace import Tracer
from planner.ir.plan import Fragment, Plan, RegstKind
from regista.views.tables.show import show_plan

STEPS = 2
FORMS = ("none", "plain", "reentrant", "nested", "nested reentrant", "sequential", "frozen input")


class Blocks(nn.Module):
    """Three blocks with dropout inside, under checkpoint as ``form`` says; x [batch, 8] -> [batch, 8]."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 8)) for _ in range(3))

    def block(self, block: nn.Module, x: Tensor) -> Tensor:
        reentrant = "reentrant" in self.form
        if self.form == "none":
            out: Tensor = block(x)
        elif "nested" in self.form:
            out = checkpoint(lambda y: checkpoint(block, y, use_reentrant=reentrant).tanh(), x, use_reentrant=reentrant)
        else:
            out = checkpoint(block, x, use_reentrant=reentrant)
        return out

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "frozen input":  # torch: without a gradient into the reentrant region, none comes out of it
            x = x + checkpoint(self.blocks[0], x, use_reentrant=True)
        x = self.first(x)
        if self.form == "sequential":
            return checkpoint_sequential(nn.Sequential(*self.blocks), 2, x, use_reentrant=False)
        for block in self.blocks:
            x = x + self.block(block, x)
        return x


def _program(form: str) -> Program:
    torch.manual_seed(1)
    return Program(Blocks(form), (torch.randn(8, 8), torch.randn(8, 8)), F.mse_loss, SGD(lr=0.1), seed=3)


CASES = [
    pytest.param(form, way, marks=() if (form, way) == ("nested reentrant", "stages") else pytest.mark.thorough)
    for form in FORMS[1:]
    for way in SIX_WAYS
]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(("form", "way"), CASES)
def test_a_checkpointed_module_trains_and_draws_as_in_plain_pytorch(form: str, way: str) -> None:
    program = _program(form)
    assert_trains_alike(program, way, lambda micro_batches: train_eagerly(program, micro_batches, STEPS), STEPS)
    assert program.tracer(SIX_WAYS[way][1].micro_batches or 1) is Tracer.RECORDER


def _flop(plan: Plan) -> int:
    return sum(task.body.flop * task.acts for task in plan.tasks if isinstance(task.body, Fragment))


def _kept_bytes(plan: Plan) -> int:
    """What the forward part keeps for the backward part."""
    forward, backward = ({task.id for task in plan.tasks if task.kind.value == kind} for kind in ("forward", "backward"))
    return sum(
        tensor.size_bytes if hasattr(tensor, "size_bytes") else torch.Size(tensor.shape).numel() * tensor.dtype.size_bytes
        for regst in plan.regsts
        if regst.kind is RegstKind.DATA and regst.producer in forward and any(t.id in backward for t, _ in plan.consumers[regst.id])
        for tensor in regst.tensors
    )


@pytest.mark.parametrize("form", ["plain", pytest.param("reentrant", marks=pytest.mark.thorough)])
def test_a_checkpointed_region_keeps_less_and_computes_more(form: str) -> None:
    whole, checkpointed = (planned(_program(which), "accumulated") for which in ("none", form))
    assert _kept_bytes(checkpointed) < 0.5 * _kept_bytes(whole)
    product = 2 * 2 * 8 * 64  # flop of the first linear layer of a block, for the 2 samples of a micro-batch
    assert _flop(checkpointed) >= _flop(whole) + 4 * 3 * product


def test_a_plan_says_what_the_module_has_computed_again() -> None:
    console = Console(width=400, record=True, file=StringIO())
    console.print(show_plan(planned(_program("plain"), "accumulated")))
    text = console.export_text()
    assert "computed again" in text and "blocks.2.0, blocks.2.1" in text and "torch.utils.checkpoint" in text
