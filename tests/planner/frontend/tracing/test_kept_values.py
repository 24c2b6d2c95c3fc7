"""Buffers and frozen parameters that no step changes may decide what is computed; every step checks that they are as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent
from oracle import train_eagerly
from torch import Tensor, nn

import regista
from backend.reference import perform
from planner.frontend import Program
from planner.frontend.tracing import trace
from planner.ir.errors import CheckFailed, InvalidProgram
from tests.planner.frontend.programs import assert_two_devices_train_as_one, closed, mse


class Keeping(nn.Module):
    """Its output is what ``ask`` makes of a layer's output and of the module's buffers."""

    def __init__(self, ask: Callable[[Keeping, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.ask = nn.Linear(8, 8), ask
        self.register_buffer("ready", torch.tensor([True]))
        self.register_buffer("count", torch.tensor(3.0))
        self.register_buffer("mask", torch.tensor([1, 0, 1, 0, 1, 1, 0, 0], dtype=torch.bool))
        self.frozen = nn.Parameter(torch.tensor(0.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.ask(self, self.layer(x)) + 0 * (self.ready.sum() + self.count + self.mask.sum() + self.frozen)


def program(ask: Callable[[Keeping, Tensor], Tensor]) -> Program:
    torch.manual_seed(0)
    return Program(Keeping(ask), (torch.randn(4, 8),), lambda made: (made**2).mean())


def a_flag(m: Keeping, h: Tensor) -> Tensor:
    return h * 2 if m.ready else h


def a_flag_of_several(m: Keeping, h: Tensor) -> Tensor:
    return h * 2 if m.ready[0] == 1 else h


def an_item(m: Keeping, h: Tensor) -> Tensor:
    return h * m.count.item()


def a_length(m: Keeping, h: Tensor) -> Tensor:
    return h[:, : int(m.count)]


def a_frozen_parameter(m: Keeping, h: Tensor) -> Tensor:
    return h + 1 if m.frozen == 0 else h


def a_list(m: Keeping, h: Tensor) -> Tensor:
    return sum((h[:, i] for i, kept in enumerate(m.mask.tolist()) if kept), torch.zeros(()))


def places(m: Keeping, h: Tensor) -> Tensor:
    return h[:, m.mask.nonzero().flatten()]


def a_mask_as_index(m: Keeping, h: Tensor) -> Tensor:
    return h[:, m.mask]


def a_mask_of_a_constant(_: Keeping, h: Tensor) -> Tensor:
    return h[:, torch.tensor([True, False] * 4)]


def equality(m: Keeping, h: Tensor) -> Tensor:
    return h * 2 if torch.equal(m.count, torch.tensor(3.0)) and torch.equal(h, h) else h


BY_BOTH = [a_flag, a_flag_of_several, an_item, a_length, a_frozen_parameter]
BY_THE_RECORDER = [a_list, places, a_mask_as_index, a_mask_of_a_constant, equality]


@pytest.mark.parametrize(
    ("ask", "other"), [*((ask, "_made_fx") for ask in (*BY_BOTH, *BY_THE_RECORDER)), *((ask, "_recorded") for ask in BY_BOTH)]
)
def test_a_step_that_asks_state_which_it_does_not_change_trains_as_in_torch(
    ask: Callable[[Keeping, Tensor], Tensor], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, other, closed)
    source = program(ask)
    assert_two_devices_train_as_one(source)


@pytest.mark.parametrize(
    ("ask", "name"), [(a_flag, "ready"), (an_item, "count"), (a_mask_as_index, "mask"), (a_frozen_parameter, "frozen")]
)
def test_a_run_that_begins_from_another_value_ends_with_who_asked_for_it(ask: Callable[[Keeping, Tensor], Tensor], name: str) -> None:
    source = program(ask)
    plan = regista.plan(source, "local:2")
    state = source.initial_state()
    state[name] = ~state[name] if state[name].dtype is torch.bool else state[name] + 1
    with pytest.raises(
        CheckFailed, match=rf"'{name} is as it was when the plan was made', for 'return .*' in test_kept_values.py asked for it"
    ):
        perform(plan, state, source.batch, 1)


def test_an_evaluation_without_loss_checks_state_too() -> None:
    source = Program(Keeping(a_flag), (torch.randn(4, 8),)).evaluating(True)
    plan = regista.plan(source, "local:2", mode="eval", outputs=True)
    state = source.initial_state()
    assert perform(plan, state, source.batch, 1).outputs
    with pytest.raises(CheckFailed, match="'ready is as it was when the plan was made'"):
        perform(plan, state | {"ready": ~state["ready"]}, source.batch, 1)


def test_state_is_checked_once_however_often_it_is_asked() -> None:
    def often(m: Keeping, h: Tensor) -> Tensor:
        for _ in range(5):
            h = h * 2 if m.ready else h
        return h

    assert [op.target for op in program(often).graph().ops].count("regista.check") == 1


@pytest.mark.parametrize("read", [lambda m, h: h, lambda m, h: h * m.count, lambda m, h: h * m.mask[torch.arange(8)]])
def test_state_that_decides_nothing_is_read_and_not_checked(read: Callable[[Keeping, Tensor], Tensor]) -> None:
    assert not any(op.target == "regista.check" for op in program(read).graph().ops)


def write(m: Keeping) -> None:
    m.ready.fill_(False)


def write_through_data(m: Keeping) -> None:
    m.ready.data.copy_(torch.tensor([False]))


def assign(m: Keeping) -> None:
    m.ready = torch.zeros_like(m.ready)


@pytest.mark.parametrize("change", [write, write_through_data, assign])
@pytest.mark.parametrize("other", ["_made_fx", "_recorded"])
def test_a_step_that_changes_what_it_asks_for_is_refused_with_the_way_out(
    change: Callable[[Keeping], None], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def initializes(m: Keeping, h: Tensor) -> Tensor:
        made = h * 2 if m.ready else h
        change(m)
        return made

    monkeypatch.setattr(trace, other, closed)
    with pytest.raises(InvalidProgram, match=r"the value of ready decides what .*made = h \* 2 if m.ready.*run the module once on a batch"):
        program(initializes).graph()


def test_state_without_values_stays_unknown() -> None:
    source = Program(Keeping(a_flag).to("meta"), (torch.randn(4, 8),), lambda made: made.mean())
    with pytest.raises(InvalidProgram, match="lets a value decide what is computed"):
        source.graph()


def test_state_that_is_no_number_stays_unknown() -> None:
    module = Keeping(an_item)
    module.count.fill_(float("nan"))
    with pytest.raises(InvalidProgram, match="lets a value decide what is computed"):
        Program(module, (torch.randn(4, 8),), lambda made: made.mean()).graph()


def test_an_assert_on_state_stays_a_check_of_what_it_says() -> None:
    """A step may change what it asserts something of."""

    class Asserting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("seen", torch.tensor(0.0))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            if self.seen < 1:
                raise ValueError
            made: Tensor = self.layer(x)
            return made

    source = Program(Asserting(), (torch.randn(4, 8), torch.randn(4, 8)), mse)
    plan = regista.plan(source, "local:2")
    assert_transparent(perform(plan, source.initial_state(), source.batch, 2, gradients=True), train_eagerly(source, 1, 2))


class ActNorm(nn.Module):
    """Scales by what the first batch was, as flows do [Kingma & Dhariwal 2018]."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(1, 8)), nn.Parameter(torch.ones(1, 8))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if self.initialized.item() == 0:
            with torch.no_grad():
                self.shift.data.copy_(-x.mean(0, keepdim=True))
                self.scale.data.copy_(1 / (x.std(0, keepdim=True) + 1e-6))
            self.initialized.fill_(1)
        return self.scale * (x + self.shift)


def test_a_module_that_its_first_batch_has_initialized_trains_as_in_torch() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), ActNorm(), nn.Linear(8, 8), ActNorm()), torch.randn(4, 8)
    with pytest.raises(InvalidProgram, match=r"the value of 1\.initialized decides"):
        Program(module, (x, x), mse).graph()
    module(x)
    source = Program(module, (x, x), mse)
    assert_two_devices_train_as_one(source)


class GraphConvolution(nn.Module):
    """A layer of a GCN; edges from a node to itself are left out by a mask, as torch_geometric does [Kipf & Welling 2017]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 3, 1], [1, 1, 0, 3, 2, 0]]))

    def forward(self, x: Tensor) -> Tensor:
        here, there = self.edges[:, self.edges[0] != self.edges[1]]
        made = self.layer(x)
        return F.relu(torch.zeros_like(made).index_add(0, there, made[here]))


def test_edges_of_a_graph_may_be_chosen_by_a_mask_where_they_are_a_buffer() -> None:
    torch.manual_seed(0)
    source = Program(GraphConvolution(), (torch.randn(4, 8), torch.randn(4, 8)), mse)
    plan = regista.plan(source, "local:2", micro_batches=1)
    assert_transparent(perform(plan, source.initial_state(), source.batch, 2, gradients=True), train_eagerly(source, 1, 2))
