"""The command line plans, explains, simulates and performs evaluations, and refuses to update in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import TINY, Command, commands

from regista.api import program_of
from tests.regista.refusals.refusal import assert_refused


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture
def evaluation(command: Command, tmp_path: Path) -> Path:
    path = tmp_path / "eval.json"
    assert command("plan", TINY, "--cluster", "local:2", "--mode", "eval", "--outputs", "all", "-o", path).code == 0
    return path


def test_outputs_are_written_for_every_step(command: Command, evaluation: Path, tmp_path: Path) -> None:
    ran = command("run", evaluation, "--performer", "reference", "--steps", "2", "--outputs", tmp_path / "found.pt")
    assert ran.code == 0 and "the mean over 2 batches" in ran.out
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    program = program_of(TINY)
    assert list(found) == ["loss", "output"] and found["output"].shape[:2] == (2, 8)
    for step in range(2):
        x, *_ = program.batch(step)
        with torch.no_grad():
            torch.testing.assert_close(found["output"][step], program.module.eval()(x), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_every_verb_takes_the_plan_of_an_evaluation(command: Command, evaluation: Path, tmp_path: Path) -> None:
    sim, ran = tmp_path / "sim.json", tmp_path / "run.json"
    shown = command("explain", evaluation)
    assert shown.code == 0 and "evaluation: forward pass alone" in shown.out and "proven: no plan is cheaper" in shown.out
    for arguments in (
        ("simulate", evaluation, "-o", sim),
        ("run", evaluation, "--performer", "reference", "--steps", "3", "-o", ran),
        ("compare", sim, ran),
        ("gantt", sim, "-o", tmp_path / "sim.svg"),
        ("export", sim, "-o", tmp_path / "sim.trace.json"),
        ("whatif", evaluation, "--set", "cluster.links.node.bandwidth_GBps=9"),
        ("diff", evaluation, evaluation),
        ("quotas", evaluation, "--full-throughput"),
    ):
        assert command(*arguments).code == 0, arguments


@pytest.mark.thorough
def test_an_evaluation_of_a_checkpoint_takes_its_parameters_or_their_averages(command: Command, tmp_path: Path) -> None:
    train, evaluation, saves = tmp_path / "train.json", tmp_path / "eval.json", tmp_path / "saves"
    assert command("plan", TINY, "--cluster", "local:2", "--ema", "0.5", "-o", train).code == 0
    assert command("plan", TINY, "--cluster", "local:2", "--mode", "eval", "-o", evaluation).code == 0
    assert command("run", train, "--steps", "3", "--checkpoint", saves).code == 0
    goal = ("run", evaluation, "--performer", "reference", "--steps", "1", "--json", "--init", f"checkpoint:{saves}")
    of_parameters, of_averages = command(*goal).json, command(*goal, "--ema").json
    assert of_parameters["losses"][0] < of_averages["losses"][0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--zero", "1"], "ZeRO level 1 of an evaluation, which has neither gradients nor optimizer state to split"),
        (["--recompute", "blocks"], "recomputation in an evaluation, which has no backward pass"),
        (["--stages", "2", "--schedule", "zb-h1"], "zb-h1 of an evaluation orders the parts of a backward pass"),
        (["--lr-schedule", "constant:0.1"], "an evaluation updates nothing, and lr_schedule was asked for"),
        (["--clip-norm", "1", "--ema", "0.9"], "an evaluation updates nothing, and clip_norm, ema was asked for"),
        (["--outputs", "logits"], "the module returns no output 'logits'; it returns output"),
    ],
)
def test_a_plan_of_an_evaluation_that_is_asked_to_update_is_refused(
    command: Command, tmp_path: Path, options: list[str], says: str
) -> None:
    assert_refused(
        command, tmp_path, "plan", TINY, "--cluster", "local:2", "--mode", "eval", "-o", tmp_path / "p.json", *options, says=says
    )


def test_a_run_of_an_evaluation_that_is_asked_to_save_is_refused(command: Command, evaluation: Path, tmp_path: Path) -> None:
    says = "this plan is an evaluation: it updates nothing, so there is no state to save"
    assert_refused(command, tmp_path, "run", evaluation, "--checkpoint", tmp_path / "saves", says=says)
    assert_refused(command, tmp_path, "run", evaluation, "--performer", "reference", "--ema", says="holds no moving averages")


def test_outputs_of_a_training_step_are_refused(command: Command, tmp_path: Path) -> None:
    goal = ("plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json", "--outputs", "all")
    assert_refused(command, tmp_path, *goal, says="outputs leave an evaluation")
