"""Learning rates, clipping and averages from the command line: they are what a Program says with the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import TINY, Command, commands

import regista
import regista.api as api
from planner.ir.errors import InvalidFile, InvalidProgram
from planner.ir.files import load_plan
from regista.update_options import parse_rates
from tests.regista.refusals.refusal import assert_refused


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("constant:0.5", [0.5, 0.5, 0.5]),
        ("linear:1?steps=4", [1, 0.75, 0.5, 0.25, 0, 0]),
        ("linear:1?warmup=2&steps=4&end=0.5", [0.5, 1, 1, 0.75, 0.5, 0.5]),
        ("cosine:2?steps=2", [2, 1, 0, 0]),
        ("step:1?every=2&factor=0.5", [1, 1, 0.5, 0.5, 0.25]),
        ("step:1?every=3&factor=0.5&warmup=2", [0.5, 1, 1, 0.5]),
    ],
)
def test_a_schedule_in_words_is_the_rate_of_every_step(text: str, rates: list[float]) -> None:
    schedule = parse_rates(text)
    assert [schedule(step) for step in range(len(rates))] == pytest.approx(rates, abs=1e-12)


def test_a_schedule_may_be_a_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text("def warm(step):\n    return 0.1 * (step + 1)\n")
    assert parse_rates(f"{tmp_path}/rates.py:warm")(4) == pytest.approx(0.5)
    with pytest.raises(InvalidProgram, match="has no function 'cold'; it has warm"):
        parse_rates(f"{tmp_path}/rates.py:cold")
    with pytest.raises(InvalidFile, match="does not exist"):
        parse_rates(f"{tmp_path}/none.py:warm")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("constant", "'constant' are not understood; write constant:RATE, linear:"),
        ("constant:nan", "the rate is nan; give a finite number of at least 0"),
        ("constant:-1", "the rate is -1"),
        ("constant:0.1?steps=3", "steps is not known; constant has no options"),
        ("linear:0.1", "steps is missing"),
        ("linear:0.1?warmup=9&steps=9", "the way down ends at step 9 and begins at 9"),
        ("cosine:0.1?steps=9&steps=8", "each once"),
        ("cosine:0.1?steps=inf", "steps is inf"),
        ("step:0.1?every=0.5", "every=0.5; give a whole number"),
        ("sine:0.1", "'sine:0.1' are not understood"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_the_forms_there_are(text: str, says: str) -> None:
    with pytest.raises(InvalidProgram, match=says):
        parse_rates(text)


def test_two_schedules_are_one_plan_and_another_run(command: Command, tmp_path: Path) -> None:
    """A plan keeps clipping and averages, which are of its graph, and of the schedule only that rates come from outside."""
    losses, ids = [], []
    for number, rates in enumerate(("constant:0.05", "step:0.05?every=1&factor=0.1")):
        plan = tmp_path / f"{number}.json"
        options = ("--lr-schedule", rates, "--clip-norm", "0.5", "--clip-value", "0.1", "--ema", "0.9")
        assert command("plan", TINY, "--cluster", "local:2", *options, "-o", plan, "--json").code == 0
        ran = command("run", plan, "--performer", "reference", "--steps", "3", "--lr-schedule", rates, "--json")
        losses.append(ran.json["losses"])
        ids.append(load_plan(plan).plan_id)
    assert ids[0] == ids[1]
    assert losses[0][:2] == losses[1][:2] and losses[0][2] != losses[1][2]
    named = load_plan(tmp_path / "1.json")
    assert named.options["clip_norm"] == "0.5" and named.options["ema"] == "0.9" and named.options["lr_schedule"] == "by step"
    source = api.program_of(TINY).updated_by(lr_schedule=lambda step: 0.05 * 0.1**step, clip_norm=0.5, clip_value=0.1, ema=0.9)
    direct = regista.run(regista.plan(source, "local:2"), source, steps=3, performer=regista.Performer.REFERENCE)
    assert losses[1] == list(direct.losses)
    assert {name for name in direct.states if name.endswith(":ema")}
    assert command("diff", tmp_path / "0.json", tmp_path / "1.json", "--json").code == 0  # a trace needs no rates
    assert_refused(
        command, tmp_path, "run", tmp_path / "0.json", says="takes its learning rates from outside and holds no schedule.*--lr-schedule"
    )
    assert_refused(command, tmp_path, "deploy", tmp_path / "0.json", "--kind", "slurm", says="takes its learning rates from outside")


def test_rates_for_a_plan_of_constant_rates_are_refused(command: Command, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan, "--json").code == 0
    assert_refused(
        command, tmp_path, "run", plan, "--lr-schedule", "constant:0.1", says="has constant learning rates; leave --lr-schedule out"
    )


def test_a_scale_of_the_loss_is_recorded_and_is_that_of_a_program_with_the_same_words(command: Command, tmp_path: Path) -> None:
    plan, words = tmp_path / "plan.json", "dynamic:1024?interval=2"
    assert command("plan", TINY, "--cluster", "local:1", "--precision", "fp16-mixed", "--loss-scale", words, "-o", plan, "--json").code == 0
    assert load_plan(plan).options["loss_scale"] == words
    ran = command("run", plan, "--performer", "reference", "--steps", "3", "--json")
    source = api.program_of(TINY).in_formats("fp16-mixed", None).updated_by(loss_scale=words)
    direct = regista.run(regista.plan(source, "local:1"), source, steps=3, performer=regista.Performer.REFERENCE)
    assert ran.json["losses"] == list(direct.losses)
    assert float(direct.states["loss_scale"]) == 2048
