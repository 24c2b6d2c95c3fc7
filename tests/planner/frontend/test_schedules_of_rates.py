"""Learning rates by step: a torch scheduler or a function is an input of the step, checked at every step, and never left out."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import pytest
import torch
from interpret import interpret
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from trainer import train_plainly

from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram, RegistaError, Unsupported
from planner.ir.graph import InputKind
from planner.ir.text import content_id

RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 6, generator=RNG), torch.randn(8, 3, generator=RNG)

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "steps": lambda o: lr_scheduler.StepLR(o, 2, 0.1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda step: 1 / (step + 1), lambda step: 0.5**step]),
    "one cycle, of momentum too": lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.2], total_steps=8),
    "up and down, of momentum too": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=2),
    "two cycles": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.OneCycleLR(o, 0.1, total_steps=4), lr_scheduler.OneCycleLR(o, 0.2, total_steps=8)], [3]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.2], total_steps=8, cycle_momentum=False),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 5)], [2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]),
}


def mse(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    groups = [{"params": list(module[0].parameters())}, {"params": list(module[2].parameters()), "lr": 0.03}]
    return module, torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def program_with(module: nn.Module, optimizer: object, schedule: object) -> Program:
    return Program(module, (X, Y), mse, optimizer, lr_schedule=schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduler_gives_each_group_the_rates_that_it_has_in_torch(name: str) -> None:
    module, optimizer = small()
    scheduler = SCHEDULES[name](optimizer)
    program = program_with(module, optimizer, scheduler)
    before = getattr(scheduler, "last_epoch", None), [group["lr"] for group in optimizer.param_groups]
    wanted = train_plainly(program, optimizer, 6, schedulers=[scheduler])
    got = interpret(program, program.graph(), 1, 6)
    assert got.losses == pytest.approx(wanted.losses, rel=1e-6)
    assert (getattr(scheduler, "last_epoch", None), [group["lr"] for group in optimizer.param_groups]) == before, (
        "the user's scheduler stays where it is"
    )
    rates = [tuple(value for key, value in program.step_numbers(step).items() if key.startswith("lr.")) for step in range(6)]
    for step in range(6):
        assert rates[step] == tuple(group["lr"] for group in optimizer.param_groups)
        optimizer.step()
        scheduler.step()
    asked_again = program.step_numbers(1)
    assert (asked_again["lr.0"], asked_again["lr.1"]) == rates[1], "steps may be asked for again, in any order"


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], 0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_momentum_that_a_schedule_cycles_is_an_input_of_each_step(kind: str) -> None:
    module = small()[0]
    optimizer = OPTIMIZERS[kind](list(module.parameters()))
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=8, base_momentum=0.5, max_momentum=0.95)
    program = program_with(module, optimizer, scheduler)
    graph = program.graph()
    assert [i.name for i in graph.inputs if i.kind is InputKind.STEP_INPUT] == ["lr.0", "momentum.0"]
    momenta = [program.step_numbers(step)["momentum.0"] for step in range(8)]
    assert momenta[0] == pytest.approx(0.95) and min(momenta) < 0.6
    wanted = train_plainly(program, optimizer, 6, schedulers=[scheduler])
    got = interpret(program, graph, 1, 6)
    assert got.losses == pytest.approx(wanted.losses, rel=1e-6)


def test_a_scheduler_that_has_made_steps_goes_on_where_it_stands() -> None:
    module, optimizer = small()
    scheduler = lr_scheduler.StepLR(optimizer, 2, 0.1)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    program = program_with(module, optimizer, scheduler)
    assert [program.step_numbers(step)["lr.0"] for step in range(3)] == pytest.approx([0.01, 0.001, 0.001])


def test_several_schedulers_are_stepped_one_after_the_other() -> None:
    module, optimizer = small()
    both = [lr_scheduler.ExponentialLR(optimizer, 0.5), lr_scheduler.StepLR(optimizer, 2, 0.1)]
    program = program_with(module, optimizer, both)
    assert [program.step_numbers(step)["lr.0"] for step in range(4)] == pytest.approx([0.1, 0.05, 0.0025, 0.00125])


def test_a_function_gives_one_rate_for_all_groups_or_one_each() -> None:
    module, optimizer = small()
    assert program_with(module, optimizer, lambda step: 0.1 * step).step_numbers(3) == pytest.approx({"lr.0": 0.3, "lr.1": 0.3})
    assert program_with(module, optimizer, lambda step: [1, step]).step_numbers(3) == {"lr.0": 1.0, "lr.1": 3.0}


def test_another_schedule_is_the_same_graph_and_no_schedule_keeps_the_rate_as_a_constant() -> None:
    module, optimizer = small()
    graphs = [program_with(module, optimizer, schedule).graph() for schedule in (lambda step: 0.1, lambda step: 0.2 / (step + 1), None)]
    one, other, constant = map(content_id, graphs)
    assert one == other != constant
    assert [i.name for i in graphs[0].inputs if i.kind is InputKind.STEP_INPUT] == ["lr.0", "lr.1"]
    assert not [i for i in graphs[2].inputs if i.kind is InputKind.STEP_INPUT]


def test_a_group_that_the_loss_does_not_need_has_no_input() -> None:
    module, _ = small()
    module.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    optimizer = torch.optim.SGD([{"params": [module.unused]}, {"params": list(module[0].parameters())}], lr=0.1)  # type: ignore[index]
    graph = program_with(module, optimizer, lambda step: 0.1).graph()
    assert [i.name for i in graph.inputs if i.kind is InputKind.STEP_INPUT] == ["lr.1"]


class Cyclic(LRScheduler):
    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [nan if self.last_epoch == 4 else 0.1] * 2


class Decaying(LRScheduler):
    changes = "weight_decay"

    def get_lr(self) -> list[float]:  # type: ignore[override]
        for group in self.optimizer.param_groups:
            group[self.changes] = 0.1 * self.last_epoch
        return [0.1] * 2


class Slowing(Decaying):
    changes = "momentum"


def of_a_table() -> object:
    module = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))
    module[2].requires_grad_(False)
    tables = torch.optim.SparseAdam(list(module[0].parameters()), 0.1)
    schedule = lr_scheduler.OneCycleLR(tables, 0.1, total_steps=8)
    return Program(module, (torch.zeros(8, 2, dtype=torch.int64), Y), mse, tables, lr_schedule=schedule).graph()


def attached() -> Program:
    module, optimizer = small()
    lr_scheduler.StepLR(optimizer, 2)
    return program_with(module, optimizer, None)


def attached_to_a_metric() -> Program:
    module, optimizer = small()
    _kept = lr_scheduler.ReduceLROnPlateau(optimizer)
    return program_with(module, optimizer, None)


def with_schedule(make: Callable[[torch.optim.Optimizer], object], step: int = 0) -> Callable[[], object]:
    def build() -> object:
        module, optimizer = small()
        return program_with(module, optimizer, make(optimizer)).step_numbers(step)

    return build


REFUSED: dict[str, tuple[Callable[[], object], type[RegistaError], str]] = {
    "attached and not given": (
        attached,
        Unsupported,
        r"scheduler of torch is attached to this torch.optim.SGD; give it .*lr_schedule=scheduler",
    ),
    "attached and not given, follows a metric": (attached_to_a_metric, Unsupported, "ReduceLROnPlateau of torch is attached"),
    "nan": (with_schedule(Cyclic, 4), InvalidProgram, "the learning rate of step 4 is nan in group 0"),
    "nan at once": (with_schedule(lambda o: lambda step: nan), InvalidProgram, "step 0 is nan"),
    "negative": (with_schedule(lambda o: lambda step: [0.1, 2 - step], 3), InvalidProgram, "step 3 is -1.0 in group 1"),
    "another optimizer's": (with_schedule(lambda o: lr_scheduler.StepLR(small()[1], 2)), InvalidProgram, "StepLR is of another optimizer"),
    "follows a metric": (with_schedule(lr_scheduler.ReduceLROnPlateau), Unsupported, r"ReduceLROnPlateau .* session.step\(batch, lr=...\)"),
    "weight decay, too": (with_schedule(Decaying), Unsupported, "Decaying changes weight_decay of group 0 at step 1"),
    "momentum, and does not say so": (with_schedule(Slowing), Unsupported, "Slowing changes momentum of group 0 at step 1"),
    "momentum of a table": (of_a_table, Unsupported, "cycles momentum, and 0.weight, whose looked-up rows alone are updated"),
    "too short": (
        with_schedule(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=3, cycle_momentum=False), 9),
        InvalidProgram,
        "OneCycleLR has no learning rate for step [34]: ValueError",
    ),
    "a number": (with_schedule(lambda o: 0.1), InvalidProgram, "lr_schedule is a float; give a scheduler"),
    "no number": (with_schedule(lambda o: lambda step: None), InvalidProgram, r"lr_schedule\(0\) raised TypeError"),
    "too few": (with_schedule(lambda o: lambda step: [0.1]), InvalidProgram, "gives 1 rates and the optimizer has 2 groups"),
    "names": (with_schedule(lambda o: ["cosine"]), InvalidProgram, "lr_schedule holds a str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_schedule_is_refused_with_step_and_value(case: str) -> None:
    make, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        make()


def test_rules_of_our_own_take_a_schedule() -> None:
    module, _ = small()
    program = program_with(module, SGD(0.5), lambda step: 0.25)
    assert program.step_numbers(0) == {"lr.0": 0.25}
