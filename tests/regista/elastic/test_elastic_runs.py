"""Elastic runs of real launchers: what is left of the hosts goes on, and ends with the last bit of the runs that it consists of."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_launchers import Launchers, plan_for
from torch import Tensor

import regista
from backend.checkpoint.owner import Owner, lock
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from regista.programs import planned_program

STEPS = 1500

pytestmark = pytest.mark.processes


def undisturbed(folder: Path, parts: Sequence[tuple[Plan, int]], init: str = "module") -> tuple[list[float], dict[str, Tensor]]:
    """Losses and last state of runs on one host that nobody disturbs: each part goes on to its step from where the one before it ended."""
    saves, losses = folder / "undisturbed", list[float]()
    for plan, end in parts:
        outcome = regista.run(plan, planned_program(plan), steps=end, checkpoint=str(saves), resume=saves.exists(), init=init)
        losses += outcome.losses
    states = {name: value.clone() for name, value in outcome.states.items()}
    shutil.rmtree(saves)
    return losses, states


def check_equal(outcome: dict[str, Any], losses: list[float], states: dict[str, Tensor]) -> None:
    assert outcome["losses"] == losses[outcome["first_step"] :]
    assert outcome["states"].keys() == states.keys()
    for name, value in states.items():
        assert torch.equal(outcome["states"][name], value), name


@pytest.mark.representatives("another host")
@pytest.mark.parametrize("victim", ["another host", "the rendezvous host"])
def test_a_run_that_loses_a_host_equals_the_run_that_its_parts_are(victim: str, launchers: Launchers) -> None:
    plan = plan_for(2)
    for _ in range(2):
        launchers.start(plan, STEPS)
    launchers.await_save(300)
    first = launchers.host0()
    lost = first if victim == "the rendezvous host" else 1 - first
    launchers.started[lost].kill()
    assert launchers.ends(1 - lost) == [0], launchers.said(1 - lost)
    assert "1 to 2 hosts meet again" in launchers.said(1 - lost)
    outcome = torch.load(launchers.outcome, weights_only=True)
    made = load_plan(str(launchers.saves / "plan-1-hosts.json"))
    assert (outcome["plan"], outcome["hosts"]) == (made.plan_id, 1)
    assert outcome["first_step"] >= 300 and outcome["first_step"] % 100 == 0
    check_equal(outcome, *undisturbed(launchers.folder, [(plan, outcome["first_step"]), (made, STEPS)]))
    assert launchers.left() == []


@pytest.mark.thorough
def test_a_host_that_comes_back_takes_part_from_the_next_meeting_on(launchers: Launchers) -> None:
    plan, steps, gate = plan_for(2), 2800, launchers.folder / "back"
    for _ in range(2):
        launchers.start(plan, steps, restarts=1)
    launchers.start(plan, steps, restarts=1, resume=True, gate=gate)
    launchers.await_save(300)
    stays = launchers.host0()
    launchers.started[1 - stays].kill()
    launchers.await_text(stays, "meet again")
    launchers.await_save(700)
    gate.touch()
    launchers.await_save(1500)
    for pid in launchers.workers(stays):
        os.kill(pid, signal.SIGKILL)
    assert launchers.ends(stays, 2) == [0, 0], [launchers.said(n) for n in range(3)]
    outcome = torch.load(launchers.outcome, weights_only=True)
    assert (outcome["plan"], outcome["hosts"]) == (plan.plan_id, 2)
    assert 1500 <= outcome["first_step"] < steps


@pytest.mark.thorough
def test_a_launcher_that_is_stopped_is_left_behind_and_told_so_when_it_wakes(launchers: Launchers) -> None:
    plan, steps = plan_for(2), 2500
    for _ in range(2):
        launchers.start(plan, steps)
    launchers.await_save(300)
    stopped = 1 - launchers.host0()
    launchers.started[stopped].send_signal(signal.SIGSTOP)
    assert launchers.ends(1 - stopped) == [0], launchers.said(1 - stopped)
    assert "did not " in launchers.said(1 - stopped)
    launchers.started[stopped].send_signal(signal.SIGCONT)
    assert launchers.ends(stopped) == [2]
    assert f"is at step {steps} already" in launchers.said(stopped)
    assert launchers.left() == []


@pytest.mark.thorough
def test_a_worker_that_dies_is_started_again_with_all_hosts_where_restarts_are_left(launchers: Launchers) -> None:
    plan = plan_for(2)
    for _ in range(2):
        launchers.start(plan, STEPS, least=2, restarts=1)
    launchers.await_save(300)
    other = 1 - launchers.host0()
    for pid in launchers.workers(other):
        os.kill(pid, signal.SIGKILL)
    assert launchers.ends(0, 1) == [0, 0], [launchers.said(n) for n in range(2)]
    outcome = torch.load(launchers.outcome, weights_only=True)
    assert outcome["hosts"] == 2 and outcome["first_step"] >= 300
    check_equal(outcome, *undisturbed(launchers.folder, [(plan, STEPS)]))


@pytest.mark.thorough
def test_a_fault_of_a_worker_without_restarts_ends_the_run_on_all_hosts(launchers: Launchers) -> None:
    for _ in range(2):
        launchers.start(plan_for(2), 30_000)
    launchers.await_save(300)
    other = 1 - launchers.host0()
    for pid in launchers.workers(other):
        os.kill(pid, signal.SIGKILL)
    assert launchers.ends(0, 1) == [2, 2]
    assert "WorkerFailed" in launchers.said(0) and "WorkerFailed" in launchers.said(1)
    assert launchers.left() == []


@pytest.mark.thorough
def test_fewer_hosts_than_the_fewest_give_up_after_their_patience(launchers: Launchers) -> None:
    for _ in range(2):
        launchers.start(plan_for(2, "zoo:mlp?batch=12&width=12&hidden=12&depth=2"), 30_000, least=2, most=3, patience_s=12.0)
    launchers.await_save(300)
    other = 1 - launchers.host0()
    launchers.started[other].kill()
    assert launchers.ends(1 - other) == [2]
    assert "2 of 3 hosts did not meet at 127.0.0.1" in launchers.said(1 - other)
    assert launchers.left() == []


@pytest.mark.thorough
def test_two_hosts_save_and_go_on_to_the_last_bit_of_one_run(launchers: Launchers) -> None:
    plan = plan_for(2)
    for _ in range(2):
        launchers.start(plan, 250, least=2, init="philox:7")
    assert launchers.ends(0, 1) == [0, 0], [launchers.said(n) for n in range(2)]
    for _ in range(2):
        launchers.start(plan, 400, least=2, resume=True, init="philox:7")
    assert launchers.ends(2, 3) == [0, 0], [launchers.said(n) for n in (2, 3)]
    outcome = torch.load(launchers.outcome, weights_only=True)
    assert outcome["first_step"] == 250
    check_equal(outcome, *undisturbed(launchers.folder, [(plan, 400)], init="philox:7"))
    assert not list(launchers.saves.glob(".shared*"))


@pytest.mark.thorough
def test_a_folder_that_holds_another_runs_checkpoints_is_refused_on_all_hosts(launchers: Launchers) -> None:
    plan = plan_for(2)
    regista.run(plan, planned_program(plan), steps=2, checkpoint=str(launchers.saves))
    for _ in range(2):
        launchers.start(plan, 50)
    assert launchers.ends(0, 1) == [2, 2]
    assert all("holds 1 checkpoints, the newest of step 2; resume from it" in launchers.said(n) for n in (0, 1))


@pytest.mark.thorough
def test_a_folder_in_which_another_run_saves_is_refused_on_all_hosts(launchers: Launchers) -> None:
    launchers.saves.mkdir()
    held = lock(launchers.saves, owner=Owner.here("another"))
    try:
        for _ in range(2):
            launchers.start(plan_for(2), 50)
        assert launchers.ends(0, 1) == [2, 2]
    finally:
        os.close(held)
    assert all("another run is saving into" in launchers.said(n) for n in (0, 1))
