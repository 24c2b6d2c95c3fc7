"""Learning rates that change, in real processes: each step has its own, after a resume too; sessions may give their own."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest
import torch
from trainer import train_plainly
from trainer_cases import Training, small_training

import backend
import regista
from backend.checkpoint.export import optimizer_state_dict
from planner.ir.errors import InvalidProgram
from planner.ir.plan import Plan, TaskKind

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*ranks on .* cores")]


def planned(training: Training) -> tuple[regista.Program, Plan]:
    program = training.program()
    return program, regista.plan(program, "local:2", pins=["input.*=S(0)"], zero=1)


def test_a_resumed_run_has_the_rates_of_its_steps(tmp_path: Path) -> None:
    training = small_training()
    program, plan = planned(training)
    wanted = train_plainly(program, training.optimizer, 6, schedulers=[training.scheduler])
    whole = regista.run(plan, program, steps=6)
    first = regista.run(plan, program, steps=4, checkpoint=str(tmp_path))
    rest = regista.run(plan, program, steps=6, checkpoint=str(tmp_path), resume=True)
    assert whole.losses == pytest.approx(wanted.losses, rel=1e-5)
    assert (*first.losses, *rest.losses) == whole.losses
    assert all(torch.equal(rest.states[name], value) for name, value in whole.states.items())
    exported = [(group["lr"], group["weight_decay"]) for group in optimizer_state_dict(tmp_path)["param_groups"]]
    assert sorted(exported) == sorted([(program.step_numbers(5)["lr.0"], 0.1), (program.step_numbers(5)["lr.1"], 0.0)])


def test_a_session_takes_the_schedule_or_a_rate_of_its_own() -> None:
    program, plan = planned(small_training())
    whole = regista.run(plan, program, steps=3)
    with regista.session(plan, program) as session:
        assert tuple(session.step(program.batch(step)).loss() for step in range(3)) == whole.losses
    with regista.session(plan, program) as session:
        for step in range(3):
            session.step(program.batch(step), lr=0.0)
        with pytest.raises(InvalidProgram, match=r"lr=\[0.1\], and the plan takes 2 learning rates"):
            session.step(program.batch(3), lr=[0.1])
    assert session.outcome is not None
    assert all(torch.equal(session.outcome.states[name], value) for name, value in program.module.named_parameters())


def test_a_rate_that_is_no_number_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    training = small_training()
    _, plan = planned(training)
    wrong = training.program(lr_schedule=lambda step: nan if step == 3 else 0.1)
    with pytest.raises(InvalidProgram, match="the learning rate of step 3 is nan in group 0"):
        regista.run(plan, wrong, steps=5, checkpoint=str(tmp_path / "saves"))
    assert not (tmp_path / "saves").exists()


def test_a_plan_with_step_inputs_is_not_performed_without_them() -> None:
    training = small_training()
    program, plan = planned(training)
    assert [task.acts for task in plan.tasks if task.kind is TaskKind.STEP_INPUT] == [1]
    with pytest.raises(InvalidProgram, match=r"needs step_input:lr.[01] at step 0, and nothing is given"):
        backend.run(plan, program.initial_state(), program.batch, 2)
