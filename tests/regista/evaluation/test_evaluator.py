"""One evaluator for many states: loss and metrics of each, in processes that stay or in this one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regista
from backend import inprocess
from backend.devices.fake import FakeStreamDevice
from planner.ir.errors import InvalidProgram, Mismatch, Unsupported
from regista import Performer
from regista.api import program_for
from tests.regista.evaluation.evaluated import batch_of, classifier, eager, planned

SEEDS = (20, 21, 22)


def accuracy(outputs: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    return (outputs["logits"].argmax(1) == batch[-1]).float().mean()


@pytest.mark.parametrize(
    "performer", [Performer.REFERENCE, pytest.param(Performer.GLOO, marks=[pytest.mark.thorough, pytest.mark.processes])]
)
def test_state_after_state_is_evaluated_as_one_device_does(performer: Performer) -> None:
    program = classifier()
    first = program.initial_state()
    second = {name: value * 1.5 if value.is_floating_point() else value for name, value in first.items()}
    plan = planned(program, "pipeline")
    with regista.evaluator(plan, program, performer=performer, metrics={"accuracy": accuracy}) as evaluator:
        found = [evaluator.evaluate(state, map(batch_of, SEEDS)) for state in (first, second, first)]
    assert found[0].losses == found[2].losses and found[0].metrics == found[2].metrics
    for state, evaluation in zip((first, second), found, strict=False):
        losses, outputs = zip(*(eager(program, state, seed) for seed in SEEDS), strict=True)
        assert evaluation.losses == pytest.approx([float(loss) for loss in losses], rel=1e-5)
        assert evaluation.loss == pytest.approx(float(sum(losses)) / len(SEEDS), rel=1e-5)
        of_batches = [float(accuracy(given, batch_of(seed))) for given, seed in zip(outputs, SEEDS, strict=True)]
        assert evaluation.metrics == {"accuracy": pytest.approx(sum(of_batches) / len(SEEDS))}


@pytest.mark.thorough
@pytest.mark.processes
def test_a_session_is_evaluated_between_its_steps() -> None:
    program = classifier()
    training = regista.plan(program, "local:2", pins=["input.*=S(0)"])
    plan = planned(program, "tensor parallel")
    with regista.session(training, program) as session, regista.evaluator(plan, program) as evaluator:
        for step in range(3):
            session.step(batch_of(step))
            with session.between_steps() as paused:
                state = paused.read()
            found = evaluator.evaluate(state, [batch_of(20)])
            assert found.loss == pytest.approx(float(eager(program, state, 20)[0]), rel=1e-5)


def test_what_is_no_evaluation_is_refused() -> None:
    program = classifier()
    plan = planned(program, "one device")
    with pytest.raises(Unsupported, match="plan of mode eval"):
        regista.evaluator(regista.plan(program, "local:1"), program)
    with pytest.raises(Unsupported, match="outputs=True"):
        regista.evaluator(planned(program, "one device", outputs=False), program, metrics={"accuracy": accuracy})
    evaluator = regista.evaluator(plan, program, performer=Performer.REFERENCE, metrics={"broken": lambda outputs, batch: outputs["none"]})
    with pytest.raises(InvalidProgram, match="metric broken raised KeyError"):
        evaluator.evaluate(None, [batch_of(0)])
    with pytest.raises(InvalidProgram, match="at least one batch"):
        evaluator.evaluate(None, [])
    with pytest.raises(Unsupported, match="no moving averages"):
        evaluator.evaluate(program.initial_state(), [batch_of(0)], ema=True)
    with pytest.raises(Mismatch, match=r"no head\.weight"):
        evaluator.evaluate({k: v for k, v in program.initial_state().items() if k != "head.weight"}, [batch_of(0)])
    with pytest.raises(InvalidProgram, match="batch 0"):
        evaluator.evaluate(None, [(torch.zeros(8, 9), batch_of(0)[1])])


class Pairs(torch.nn.Module):
    """What it returns has a row and a column for each sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x.T


@pytest.mark.thorough
def test_outputs_that_cannot_be_had_are_refused() -> None:
    program = classifier()
    with pytest.raises(InvalidProgram, match=r"no output 'probabilities'; it returns logits, hidden\.0, hidden\.1"):
        planned(program, "one device", outputs=["probabilities"])
    with pytest.raises(Unsupported, match="mode eval"):
        regista.plan(program, "local:1", outputs=True)
    with pytest.raises(Unsupported, match="ZeRO level 1 of an evaluation"):
        planned(program, "one device", zero=1)
    with pytest.raises(Unsupported, match="no state to save"):
        regista.run(planned(program, "one device"), program, steps=1, checkpoint="nowhere")
    pairs = regista.Program(Pairs(), torch.zeros(4, 3), loss=lambda output: output.mean())
    with pytest.raises(InvalidProgram, match="the micro-batches' do not make up the batch's"):
        regista.plan(pairs, "local:1", mode="eval", outputs=True, micro_batches=2)
    assert regista.plan(pairs, "local:1", mode="eval", micro_batches=2).outputs == ()


@pytest.mark.thorough
@pytest.mark.processes
def test_a_session_hands_over_the_outputs_of_each_step_once() -> None:
    program = classifier()
    with regista.session(planned(program, "pipeline of data parallel stages"), program) as session:
        steps = [session.step(batch_of(seed)) for seed in SEEDS]
        for step, seed in reversed(list(zip(steps, SEEDS, strict=True))):
            _, outputs = eager(program, {}, seed)
            torch.testing.assert_close(step.outputs()["logits"], outputs["logits"], rtol=1e-5, atol=1e-6)
        with pytest.raises(InvalidProgram, match="had before"):
            steps[0].outputs()


@pytest.mark.thorough
def test_outputs_wait_for_the_lanes_of_a_device() -> None:
    program = classifier()
    plan = planned(program, "pipeline")
    device = FakeStreamDevice(delay_s=0.002)
    devices = dict.fromkeys(range(plan.num_ranks), device)
    source = program_for(plan, program)
    found = inprocess.run(plan, source.initial_state(plan.micro_batches), batch_of, 3, devices=devices)
    device.close()
    for step, outputs in enumerate(found.outputs):
        torch.testing.assert_close(outputs["logits"], eager(program, {}, step)[1]["logits"], rtol=1e-5, atol=1e-6)
