"""What a step leaves in its state: an input, a parameter, a constant or another state's value is copied; what is written twice is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent
from oracle import train_eagerly
from torch import Tensor, nn

import regista
from backend.reference import perform
from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from planner.ir.plan import TaskKind

SAMPLES = 2


class Leaving(nn.Module):
    """``leave`` changes the buffers, which the loss reads.   teacher: a parameter that nobody trains."""

    def __init__(self, leave: Callable[[Leaving, Tensor, Tensor], None]) -> None:
        super().__init__()
        self.layer, self.leave = nn.Linear(8, 8), leave
        for name, value in {
            "low": torch.zeros(8),
            "high": torch.ones(8),
            "last": torch.zeros(SAMPLES, 8),
            "flag": torch.tensor(False),
        }.items():
            self.register_buffer(name, value)
        self.weight, self.teacher = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x)
        self.leave(self, made, x)
        read = (made + self.low + self.high + self.weight) ** 2
        return read.mean() + self.last.mean() + self.flag.float() * made.mean() + self.teacher.sum()


def another_buffer(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.low.copy_(m.high)


def in_turn(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.low, m.high = m.high, m.low


def a_buffer_and_its_next_value(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.low = m.high.clone()
    m.high = m.low + 1


def the_batch(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.last.copy_(x)


def the_batch_itself(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.last = x


def a_constant(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.flag.copy_(torch.tensor(True))


def a_trained_parameter(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.low.copy_(m.weight.detach())


def a_teacher(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.teacher.data.copy_(m.weight.data)


def one_value_twice(m: Leaving, made: Tensor, x: Tensor) -> None:
    mean = made.detach().mean(0)
    m.low.copy_(mean)
    m.high.copy_(mean)
    m.teacher.data.copy_(mean)


def what_was_made_before_the_old_is_read(m: Leaving, made: Tensor, x: Tensor) -> None:
    mean = made.detach().mean(0)
    m.high = (m.high + m.low * x.mean()).detach()
    m.low = mean


def one_tensor(m: Leaving, made: Tensor, x: Tensor) -> None:
    """Nothing is written in place, so that it does not matter that the two share memory."""
    m.low = m.high = made.detach().mean(0)


LEFT = [
    one_tensor,
    what_was_made_before_the_old_is_read,
    another_buffer,
    in_turn,
    a_buffer_and_its_next_value,
    a_constant,
    a_trained_parameter,
    a_teacher,
    one_value_twice,
]


WHOLE: Mapping[str, Any] = {"pins": ["input.*=S(0)"]}


@pytest.mark.parametrize(
    ("leave", "options"),
    [
        *((leave, WHOLE | zero) for leave in (*LEFT, the_batch, the_batch_itself) for zero in ({}, {"zero": 3})),
        *((leave, {"micro_batches": 2, "stages": stages}) for leave in LEFT for stages in (1, 2)),
    ],
)
def test_state_that_a_step_copies_is_that_of_torch(leave: Callable[[Leaving, Tensor, Tensor], None], options: Mapping[str, Any]) -> None:
    torch.manual_seed(0)
    micro_batches = options.get("micro_batches", 1)
    source = Program(Leaving(leave), (torch.randn(SAMPLES * micro_batches, 8),))
    plan = regista.plan(source, "local:2", **{"micro_batches": 1, **options})
    outcome = perform(plan, source.initial_state(), source.batch, 3, gradients=True)
    assert_transparent(outcome, train_eagerly(source, micro_batches, 3))


def the_weight(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.low = m.weight.detach()


def one_tensor_that_is_written(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.low.add_(1)
    m.low = m.high = made.detach().mean(0)


def a_part_of_what_is_written(m: Leaving, made: Tensor, x: Tensor) -> None:
    m.last.mul_(0.5)
    m.last = made.detach()
    m.low = m.last[0]


@pytest.mark.parametrize(
    ("leave", "of"),
    [
        (the_weight, "low the memory of weight"),
        (one_tensor_that_is_written, "high the memory of low"),
        (a_part_of_what_is_written, "last the memory of low"),
    ],
)
def test_state_that_would_share_memory_is_refused_with_the_way_out(leave: Callable[[Leaving, Tensor, Tensor], None], of: str) -> None:
    """In torch a write into the one would be one into the other, which a plan keeps apart."""
    with pytest.raises(InvalidProgram, match=rf"forward gives {of}.*copy_"):
        Program(Leaving(leave), (torch.randn(SAMPLES, 8),)).graph()


class Queue(nn.Module):
    """Keys of past batches in a ring whose place is a buffer, and an encoder that follows the trained one, as in MoCo [He et al. 2020]."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(8, 4), nn.Linear(8, 4).requires_grad_(False)
        self.register_buffer("queue", torch.randn(4, 16))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        query = self.queries(x)
        with torch.no_grad():
            for trained, following in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
                following.mul_(0.9).add_(trained, alpha=0.1)
            key = self.keys(other)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone()], 1)
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        with torch.no_grad():
            places = (self.place + torch.arange(len(key))) % self.queue.shape[1]
            self.queue[:, places] = key.T
            self.place.add_(len(key)).remainder_(self.queue.shape[1])
        return loss


def test_what_reads_a_state_is_performed_before_its_new_value_is_made() -> None:
    """The next place needs no communication, the keys that are written at the old place do: the plan deadlocked."""
    torch.manual_seed(0)
    source = Program(Queue(), (torch.randn(4, 8), torch.randn(4, 8)))
    plan = regista.plan(source, "local:2", pins=["input.*=S(0)"], micro_batches=1)
    assert sum(task.kind is TaskKind.FORWARD for task in plan.tasks) == 2
    outcome = perform(plan, source.initial_state(), source.batch, 5, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 1, 5))
