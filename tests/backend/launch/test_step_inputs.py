"""Learning rates that change, in real processes: each step has its own, after a resume too; sessions may give their own."""

from __future__ import annotations

from dataclasses import replace
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


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_run_cycles_momentum_as_torch_does_and_an_export_has_that_of_its_last_step(
    tmp_path: Path, kind: type[torch.optim.AdamW] | type[torch.optim.SGD]
) -> None:
    training = small_training()
    parameters = list(training.module.parameters())
    optimizer = kind(parameters, lr=0.01) if kind is torch.optim.AdamW else kind(parameters, lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=8, base_momentum=0.5)
    program, plan = planned(replace(training, optimizer=optimizer, scheduler=scheduler))
    wanted = train_plainly(program, optimizer, 4, schedulers=[scheduler])
    outcome = regista.run(plan, program, steps=4, checkpoint=str(tmp_path))
    assert outcome.losses == pytest.approx(wanted.losses, rel=1e-5)
    (group,) = optimizer_state_dict(tmp_path)["param_groups"]
    momentum = group["betas"][0] if kind is torch.optim.AdamW else group["momentum"]
    assert momentum == program.step_numbers(3)["momentum.0"] < 0.9
    with regista.session(plan, program) as session:
        for step in range(2):
            session.step(program.batch(step), lr=0.0)
    assert session.outcome is not None
    held = session.outcome.states
    assert all(torch.equal(held[name], value) for name, value in program.module.named_parameters()), "its own rate, the schedule's momentum"


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
