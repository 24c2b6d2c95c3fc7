"""Checkpoints of real processes: moved from layout to layout, gone on to the last bit, survived by the last good one."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_gpt import plan_for, program
from torch import nn

import regista
from backend import run
from backend.checkpoint import Saved, SaveRequest, latest, resume_point, verify
from backend.checkpoint.folder import steps_of
from backend.initial.values import whole_box
from backend.launch.session import Session
from planner.ir.errors import RegistaError, Unsupported, WorkerFailed
from planner.ir.plan import TaskKind
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.saving import with_saving

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*ranks on .* cores")]


def uninterrupted(way: str, steps: int) -> regista.Outcome:
    plan = plan_for(way)
    return run(plan, program().initial_state(plan.micro_batches), program().batch, steps, timeout_s=120)


@pytest.mark.thorough
def test_a_checkpoint_moves_across_layouts_bit_by_bit_and_the_loss_goes_on(tmp_path: Path) -> None:
    """data 2 -> tensor 2 -> pipeline 2 -> 1 device -> 2 x 2: what each worker holds after loading is what was saved, optimizer state too."""
    ways = ("data2", "tensor2", "pipeline2", "one", "data2_tensor2")
    losses: list[float] = []
    request = SaveRequest(folder=str(tmp_path))
    for way in ways:
        plan, point = plan_for(way), resume_point(tmp_path)
        values = program().initial_state(plan.micro_batches) if point is None else point.values
        if point is not None:
            with Session(plan, values, timeout_s=120) as session, session.between_steps() as paused:
                loaded = paused.read()
            assert any(name.endswith(":step") for name in loaded) and any(name.endswith(":exp_avg_sq") for name in loaded)
            for name, value in loaded.items():
                assert torch.equal(value, point.values.part(name, whole_box(tuple(value.shape)))), f"{name} on {way}"
        outcome = run(plan, values, program().batch, 2, first_step=len(losses), checkpoint=request, timeout_s=120)
        assert outcome.first_step == len(losses)
        losses += outcome.losses
        saved = Saved(str(latest(tmp_path)))
        for name, value in outcome.states.items():
            assert torch.equal(value, saved.part(name, whole_box(tuple(value.shape)))), f"{name} of {way}"
    assert steps_of(tmp_path) == (2, 4, 6, 8, 10)
    torch.testing.assert_close(losses, list(uninterrupted("data2", 10).losses), rtol=1e-4, atol=1e-5)


@pytest.mark.representatives("data2")
@pytest.mark.parametrize("way", ["data2", "zero3_pipeline2"])
def test_a_run_that_resumes_gives_the_loss_and_the_state_of_an_uninterrupted_one_to_the_last_bit(way: str, tmp_path: Path) -> None:
    """Also: a checkpoint on the way holds the state after that step on every rank, though later steps had begun."""
    plan, whole = plan_for(way), uninterrupted(way, 5)
    first = regista.run(plan, program(), steps=3, checkpoint=str(tmp_path), save_every=2, timeout_s=120)
    assert steps_of(tmp_path) == (2, 3)
    on_the_way = run(plan, Saved(str(tmp_path / "step-00000002")), program().batch, 3, first_step=2, timeout_s=120)
    rest = regista.run(plan, program(), steps=5, checkpoint=str(tmp_path), resume=True, keep=1, timeout_s=120)
    assert first.losses + rest.losses == whole.losses and rest.first_step == 3
    assert on_the_way.losses == whole.losses[2:]
    assert steps_of(tmp_path) == (5,)
    for name, value in whole.states.items():
        assert torch.equal(rest.states[name], value) and torch.equal(on_the_way.states[name], value), name


@pytest.mark.thorough
def test_saving_changes_neither_losses_nor_the_trace_that_was_asked_for(tmp_path: Path) -> None:
    plan = plan_for("data2")
    saved = run(
        plan, program().initial_state(1), program().batch, 4, checkpoint=SaveRequest(folder=str(tmp_path), every=1, keep=2), timeout_s=120
    )
    check_trace(plan, saved.trace)
    assert saved.losses == uninterrupted("data2", 4).losses
    assert steps_of(tmp_path) == (3, 4)


@pytest.mark.thorough
def test_a_plan_with_saving_keeps_its_acts_in_the_trace(tmp_path: Path) -> None:
    plan = with_saving(plan_for("pipeline2"))
    outcome = run(
        plan, program().initial_state(4), program().batch, 3, checkpoint=SaveRequest(folder=str(tmp_path), every=2), timeout_s=120
    )
    check_trace(plan, outcome.trace)
    saving = {task.id for task in plan.tasks if task.kind is TaskKind.SAVE}
    assert len(saving) == 2 and sum(act.task in saving for act in outcome.trace.acts) == 2 * 3


def test_values_drawn_by_the_ranks_are_those_drawn_as_a_whole() -> None:
    """On real processes nobody hands out tensors: each layout begins with the same bits."""
    from backend.initial import program_values

    values = program_values(program(), 1, seed=12)
    for way in ("tensor2", "zero3"):
        with Session(plan_for(way), values, timeout_s=120) as session, session.between_steps() as paused:
            for name, value in paused.read().items():
                assert torch.equal(value, values.part(name, whole_box(tuple(value.shape)))), f"{name} on {way}"


def workers(folder: Path) -> list[int]:
    """Process ids of the runs whose folders lie here."""
    return [int(path.read_text() or 0) for path in sorted(folder.glob("*/rank*.pid"))]


def on_first_step(folder: Path, act: Callable[[list[int]], None]) -> Callable[[int, float], None]:
    done: list[int] = []

    def on_progress(step: int, loss: float) -> None:
        if not done and step >= 3:
            done.append(step)
            act(workers(folder))

    return on_progress


@pytest.mark.representatives("data2")
@pytest.mark.parametrize("way", ["data2", "pipeline2"])
def test_a_worker_killed_while_saving_leaves_the_last_good_one_and_resume_gives_the_same_loss(way: str, tmp_path: Path) -> None:
    work, folder = tmp_path / "work", tmp_path / "saved"
    work.mkdir()
    plan, state = plan_for(way), program().initial_state(plan_for(way).micro_batches)
    kill = on_first_step(work, lambda pids: os.kill(pids[-1], signal.SIGKILL))
    request = SaveRequest(folder=str(folder), every=1)  # a save is always under way
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        run(plan, state, program().batch, 400, checkpoint=request, workdir=work, on_progress=kill, timeout_s=120)
    newest = latest(folder)
    assert newest is not None
    steps = verify(newest).step
    assert 1 <= steps < 400
    whole = uninterrupted(way, steps + 2)
    rest = regista.run(plan, program(), steps=steps + 2, checkpoint=str(folder), resume=True, timeout_s=120)
    assert rest.losses == whole.losses[steps:]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_disk_that_fills_up_ends_the_run_and_the_last_good_one_stays(tmp_path: Path) -> None:
    work, folder = tmp_path / "work", tmp_path / "saved"
    work.mkdir()

    def fill(pids: list[int]) -> None:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (50_000, 50_000))

    state, request = program().initial_state(1), SaveRequest(folder=str(folder), every=1, keep=3)
    message = r"the checkpoint of step [0-9]+ failed: .*cannot write .*rank000[01]\.pt, [0-9]+ bytes.*File too large"
    with pytest.raises(WorkerFailed, match=message):
        run(
            plan_for("data2"),
            state,
            program().batch,
            400,
            checkpoint=request,
            workdir=work,
            on_progress=on_first_step(work, fill),
            timeout_s=120,
        )
    newest = latest(folder)
    assert newest is not None and 1 <= verify(newest).step < 400


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    plan = plan_for("one")
    for options, words in (
        ({"resume": True}, "give --checkpoint DIR with --resume"),
        ({"save_every": 2}, "give their folder"),
        ({"init": "zeros"}, "write module, philox:SEED, weights:FILE or checkpoint:DIR"),
        ({"checkpoint": str(tmp_path), "performer": regista.Performer.REFERENCE}, "real processes"),
    ):
        with pytest.raises(Unsupported, match=words):
            regista.run(plan, program(), steps=1, **options)  # type: ignore[arg-type]
    with pytest.raises(RegistaError, match=r"does not exist; give the folder"):
        regista.run(plan, program(), steps=1, init=f"checkpoint:{tmp_path}/none")


@pytest.mark.processes
@pytest.mark.parametrize("every", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_state_that_forward_writes_in_each_micro_batch_is_saved_once_per_step(tmp_path: Path, every: int) -> None:
    """A run with checkpoints hung: SAVE acted once per step on what batch norm wrote once per micro-batch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    made = regista.Program(module, (torch.randn(8, 4), torch.arange(8) % 3), nn.functional.cross_entropy)
    plan = regista.plan(made, "local:1", micro_batches=2)
    request = SaveRequest(folder=str(tmp_path), every=every)
    outcome = run(plan, made.initial_state(2), made.batch, 3, checkpoint=request, timeout_s=20)
    shorter = run(plan, made.initial_state(2), made.batch, 2, timeout_s=20)
    assert len(outcome.losses) == 3
    for step, states in ((3, outcome.states), (2, shorter.states)) if every else ((3, outcome.states),):
        saved = next((tmp_path / f"step-{step:08d}").glob("*.pt"))
        for name, value in torch.load(saved, weights_only=True).items():
            assert torch.equal(value, states[name]), (step, name)
