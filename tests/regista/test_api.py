"""The Python API on a user's own module: plan, simulate, run, compare on values, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import regista
from planner.ir.errors import InvalidProgram, Mismatch, Unsupported


class Gated(nn.Module):
    """Nothing of the zoo: an embedding of numbers, a gate, a tied projection."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.gate = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.norm(self.up(x) * torch.sigmoid(self.gate(x))))
        return out


def program(width: int = 16, batch: int = 8, lr: float = 0.05) -> regista.Program:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = Gated(width)
        batch_tensors = torch.randn(batch, width), torch.randn(batch, width)
    return regista.Program(module, batch_tensors, loss=nn.functional.mse_loss, optimizer=regista.SGD(lr=lr))


def alone(steps: int) -> list[float]:
    """Losses of the same module on one device, by autograd."""
    mine = program()
    x, y = mine.example_inputs
    optimizer = torch.optim.SGD(mine.module.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(mine.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_module_of_the_user_is_planned_simulated_run_and_compared():
    mine = program()
    plan = regista.plan(mine, "local:2", pins=["input.*=S(0)"])
    sim = regista.simulate(plan)
    outcome = regista.run(plan, mine, steps=4, performer=regista.Performer.REFERENCE)
    comparison = regista.compare(plan, sim, outcome.trace)
    assert comparison.plan_id == plan.plan_id == sim.plan_id
    assert comparison.step_time_s.predicted > 0
    assert comparison.step_time_s.measured > 0
    assert outcome.losses == pytest.approx(alone(4), rel=1e-5)


@pytest.mark.processes
def test_a_module_of_the_user_trains_on_processes_as_on_one_device():
    mine = program()
    plan = regista.plan(mine, "local:2", stages=2, micro_batches=2)
    seen: list[int] = []
    outcome = regista.run(plan, mine, steps=3, on_progress=lambda step, loss: seen.append(step))
    assert outcome.losses == pytest.approx(alone(3), rel=1e-5)
    assert seen == [0, 1, 2]


def test_planning_twice_gives_the_same_plan():
    first, second = (regista.plan(program(), "local:2", stages=2, micro_batches=2) for _ in range(2))
    assert first.plan_id == second.plan_id
    assert first == second


def test_a_plan_survives_its_file(tmp_path: Path):
    plan = regista.plan(program(), "local:2")
    regista.save_plan(plan, str(tmp_path / "p.json"))
    assert regista.load_plan(str(tmp_path / "p.json")) == plan


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (program(width=8), r"up\.weight is float32\[16, 8\], not float32\[32, 16\]"),
        (program(batch=4), "batch 4, not 8"),
        (program(lr=0.1), "the optimizer's numbers"),
        (regista.Program(nn.Linear(16, 1), (torch.randn(8, 16), torch.randn(8, 1)), loss=nn.functional.mse_loss), r"no up\.weight"),
    ],
    ids=["shapes", "batch", "learning rate", "module"],
)
def test_a_plan_is_not_run_with_another_program(other: regista.Program, says: str):
    plan = regista.plan(program(), "local:2")
    with pytest.raises(Mismatch, match=says):
        regista.run(plan, other, performer=regista.Performer.REFERENCE)
    with pytest.raises(Mismatch, match="plan this program anew"):
        regista.calibrate_plan(plan, other)


def test_the_program_may_be_made_anew():
    plan = regista.plan(program(), "local:2")
    assert regista.run(plan, program(), steps=1, performer=regista.Performer.REFERENCE).losses == pytest.approx(alone(1), rel=1e-5)


def test_a_plan_of_a_value_says_that_only_its_maker_has_the_program():
    plan = regista.plan(program(), "local:2")
    with pytest.raises(Mismatch, match=r"was made from a Program of Python named 'gated'.*regista\.run\(plan, program\)"):
        regista.run(plan)


def test_wishes_that_make_no_sense_are_refused_by_name():
    mine = program()
    with pytest.raises(Unsupported, match="schedule 'zigzag' is not known; choose from 1f1b, gpipe"):
        regista.plan(mine, "local:2", schedule="zigzag")
    with pytest.raises(InvalidProgram, match=r"0 micro-batches do not divide a batch of 8; choose one of \[1, 2, 4, 8\]"):
        regista.plan(mine, "local:2", micro_batches=0)
    with pytest.raises(Unsupported, match="stages = 0"):
        regista.plan(mine, "local:2", stages=0)
    with pytest.raises(Unsupported, match=r"quota \*=0: an actor needs at least 1 block"):
        regista.plan(mine, "local:2", quotas={"*": 0})
    with pytest.raises(Unsupported, match="buckets of 0 bytes"):
        regista.plan(mine, "local:2", bucket_bytes=0)
    with pytest.raises(Unsupported, match="steps = 0; a run has at least 1"):
        regista.run(regista.plan(mine, "local:2"), mine, steps=0)
    with pytest.raises(regista.RegistaError, match="steps = 0"):
        regista.simulate(regista.plan(mine, "local:2"), steps=0)


def test_a_performer_is_meant_by_its_name_and_no_other_takes_its_place():
    plan = regista.plan(program(), "local:2")
    here = regista.run(plan, program(), steps=2, performer="threads")
    assert here.trace.performer == "threads" and here.losses == pytest.approx(alone(2), rel=1e-5)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"performer": "thread"}, "performer 'thread' is not known; choose from gloo, threads, reference"),
        ({"waiting": "awake"}, "waiting 'awake' is not known; choose from auto, sleep"),
        ({"kernels": "fast"}, "kernels 'fast' is not known; choose from eager, compiled"),
    ],
)
def test_a_way_to_run_that_is_not_known_is_refused_by_name(option: dict[str, str], says: str):
    with pytest.raises(Unsupported, match=says):
        regista.run(regista.plan(program(), "local:2"), program(), steps=1, **option)  # type: ignore[arg-type]
