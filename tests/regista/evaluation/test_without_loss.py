"""A module that returns no loss is evaluated for its outputs alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import regista
from planner.frontend import Program
from planner.ir.errors import InvalidProgram, Unsupported
from tests.regista.evaluation.evaluated import BATCH, WAYS, Block, batch_of


class Scores(nn.Module):
    """A classifier that returns its outputs and no loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x)
        return {"scores": x.softmax(-1), "hidden": x}


@pytest.mark.representatives("pipeline")
@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_returns_no_loss_is_evaluated_for_its_outputs_alone(way: str) -> None:
    options = dict(WAYS[way])
    program = Program(Scores(), batch_of(0)[0], data=lambda step: batch_of(step)[0])
    plan = regista.plan(program, options.pop("cluster", "local:2"), mode="eval", outputs=True, **options)
    outcome = regista.run(plan, program, steps=2, performer=regista.Performer.REFERENCE)
    assert outcome.losses == outcome.trace.losses == () and not plan.has_loss
    module = program.module.eval()
    for step, outputs in enumerate(outcome.outputs):
        wanted = module(batch_of(step)[0])
        assert set(outputs) == {"scores", "hidden"}
        for name, value in outputs.items():
            torch.testing.assert_close(value, wanted[name])


def test_an_evaluation_without_loss_has_metrics_alone() -> None:
    program = Program(Scores(), batch_of(0)[0])
    plan = regista.plan(program, "local:1", mode="eval", outputs=["scores"])
    total = {"total": lambda outputs, batch: outputs["scores"].sum()}
    with regista.evaluator(plan, program, performer=regista.Performer.REFERENCE, metrics=total) as evaluator:
        evaluation = evaluator.evaluate(None, [batch_of(0)[0], batch_of(1)[0]])
        with pytest.raises(InvalidProgram, match="at least one batch"):
            evaluator.evaluate(None, [])
    assert evaluation.losses == () and evaluation.metrics["total"] == pytest.approx(BATCH)
    with pytest.raises(Unsupported, match="has no loss, since the module returns none; ask for its metrics"):
        evaluation.loss  # noqa: B018


def test_without_loss_and_without_outputs_there_is_nothing_to_plan() -> None:
    program = Program(Scores(), batch_of(0)[0])
    for options in ({}, {"mode": "eval"}):
        with pytest.raises(InvalidProgram, match="must return a scalar loss but returned a dict"):
            regista.plan(program, "local:1", **options)
