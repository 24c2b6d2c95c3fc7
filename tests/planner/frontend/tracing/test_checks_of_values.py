"""An assert on a tensor, or an if with nothing but raise, is performed as an op that ends the run; every other question to a value stays refused."""

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
from planner.frontend.tracing import trace
from planner.ir.errors import CheckFailed, InvalidProgram, WorkerFailed
from planner.ir.graph import Op
from regista.padded.asked import as_padded
from tests.planner.frontend.programs import around, assert_two_devices_train_as_one, closed, mse
from tests.planner.frontend.tracing.asking import (
    PERFORMED,
    REFUSED,
    asks_many,
    asserted,
    asserted_of_two,
    branch,
    checked_by_torch,
    never,
    of_a_maximum_of_floats,
    raised,
    raised_of_integers,
    raised_unless,
    within_bounds,
)

CHECK = "regista.check"


class Block(nn.Module):
    """``ask`` looks at what lies between two layers, which is >= 0."""

    def __init__(self, ask: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
        self.ask = ask

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        self.ask(hidden)
        made: Tensor = self.last(hidden)
        return x + made


class Asking(nn.Module):
    """Two blocks."""

    def __init__(self, ask: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.h = nn.ModuleList([Block(ask), Block(ask)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x


def program(ask: Callable[[Tensor], object], batch: int = 8) -> Program:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    return Program(Asking(ask), (torch.randn(batch, 8, generator=generator), torch.randn(batch, 8, generator=generator)), mse)


def checks(ask: Callable[[Tensor], object]) -> list[Op]:
    return [op for op in program(ask).graph().ops if op.target == CHECK]


@pytest.mark.parametrize("ask", PERFORMED)
@pytest.mark.parametrize("other", ["_recorded", "_made_fx"])
def test_a_step_with_checks_trains_as_in_torch_whichever_tracer_made_it(
    ask: Callable[[Tensor], object], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, other, closed)
    source = program(ask)
    assert checks(ask)
    assert_two_devices_train_as_one(source)


@pytest.mark.parametrize(
    "options", [{"stages": 2}, {"micro_batches": 2}, {"zero": 3}, {"recompute": 2}, {"stages": 2, "micro_batches": 4, "schedule": "zb-h1"}]
)
def test_every_kind_of_plan_carries_checks(options: Mapping[str, Any]) -> None:
    source = program(asserted_of_two)
    plan = regista.plan(source, "local:2", **options)
    outcome = perform(plan, source.initial_state(), source.batch, 2, gradients=True)
    assert_transparent(outcome, train_eagerly(source, options.get("micro_batches", 1), 2))


@pytest.mark.parametrize("place", range(7))
def test_samples_that_pad_a_batch_are_not_checked(place: int) -> None:
    """Of each sample of 7 in turn a value is wrong; the one that is added is the last again."""

    raw = program(within_bounds, batch=7)
    plan = regista.plan(raw, "local:2", pins=["input.*=S(0)"])
    source = as_padded(plan, raw)
    assert plan.batch_size == 8
    good = perform(plan, source.initial_state(), source.batch, 1, gradients=True)
    assert_transparent(good, train_eagerly(raw, 1, 1))
    x, target, weights = source.batch(0)
    weights[-1] = 0
    state = source.initial_state()
    x[place] = float("inf")
    with pytest.raises(CheckFailed, match="does not hold"):
        perform(plan, state, lambda step: (x, target, weights), 1)


@pytest.mark.parametrize("ask", [asserted, raised, raised_unless, raised_of_integers])
def test_parts_of_a_batch_are_checked_where_they_lie(ask: Callable[[Tensor], object]) -> None:
    """No check looks at a value made of all samples, which would have to be gathered."""
    graph = program(ask).graph()
    assert {graph.values[op.inputs[0]].shape for op in checks(ask)} == {(8, 16)}


def test_a_maximum_of_floats_that_must_not_be_large_is_asked_whole() -> None:
    """A NaN is that maximum, is not large and hides what is: torch goes on."""
    graph = program(of_a_maximum_of_floats).graph()
    assert [graph.values[op.inputs[0]].shape for op in checks(of_a_maximum_of_floats)] == [(), ()]


@pytest.mark.processes
def test_a_check_that_does_not_hold_ends_the_run_with_the_statement() -> None:
    source = program(never)
    with pytest.raises(
        WorkerFailed,
        match=r"^rank \d failed in task .*: the check of values 'assert h.sum\(\) < 0' in asking.py does not hold for this micro-batch$",
    ):
        regista.run(regista.plan(source, "local:2"), source, steps=1)


@pytest.mark.processes
def test_a_check_of_torch_that_does_not_hold_names_who_asked() -> None:
    source = program(checked_by_torch)
    with pytest.raises(CheckFailed, match=r"'torch._check_tensor_all\(...\)', called by checked_by_torch \(asking.py\), called by forward"):
        perform(regista.plan(source, "local:2"), source.initial_state(), source.batch, 1)


def test_a_check_of_torch_wants_a_mask() -> None:
    with pytest.raises(InvalidProgram, match="must have dtype torch"):
        program(lambda h: torch._check_tensor_all(h)).graph()


@pytest.mark.parametrize("loss", [mse, None])
@pytest.mark.parametrize("ask", [asserted, never])
def test_an_evaluation_checks_too(ask: Callable[[Tensor], object], loss: Callable[..., Tensor] | None) -> None:
    module, inputs = Asking(ask), program(ask).example_inputs
    source = Program(module, inputs if loss else inputs[:1], loss).evaluating(True) if loss else program(ask).evaluating(True)
    plan = regista.plan(source, "local:2", mode="eval", outputs=True)
    if ask is never:
        with pytest.raises(CheckFailed, match="does not hold"):
            perform(plan, source.initial_state(), source.batch, 1)
    else:
        assert perform(plan, source.initial_state(), source.batch, 1).outputs


def test_the_loss_of_gaussians_is_that_of_torch() -> None:
    """torch's own code raises where a variance is negative."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.variance = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x), F.softplus(self.variance(x))

    torch.manual_seed(0)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    source = Program(TwoHeads(), (x, y), lambda out, target: nn.GaussianNLLLoss()(out[0], target, out[1]))
    assert_two_devices_train_as_one(source)


@pytest.mark.parametrize("ask", REFUSED)
@pytest.mark.parametrize("other", ["_recorded", "none"])
def test_what_is_no_check_stays_refused(ask: Callable[[Tensor], object], other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if other != "none":
        monkeypatch.setattr(trace, other, closed)
    with pytest.raises(InvalidProgram, match="lets a value decide what is computed"):
        program(ask).graph()


def test_the_way_out_of_a_refusal_says_what_is_performed() -> None:
    with pytest.raises(InvalidProgram, match="assert, and an if that only raises, may stay"):
        program(branch).graph()


def test_a_tensor_of_several_values_has_no_truth() -> None:
    with pytest.raises(InvalidProgram, match="more than one value is ambiguous"):
        program(asks_many).graph()


class Skipping(nn.Module):
    """Each layer is skipped with probability ``p``, as LayerDrop does; ``ask`` compares a draw with it.   by_fx: make_fx traces it."""

    def __init__(self, p: float, ask: Callable[[Tensor, float], object], by_fx: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.p, self.ask, self.by_fx = p, ask, by_fx

    def forward(self, x: Tensor) -> Tensor:
        if self.by_fx:
            x = (1j * self.layers[0](x)).imag
        for layer in self.layers:
            if not self.ask(torch.rand([]), self.p):
                x = layer(x)
        return x


def below(draw: Tensor, p: float) -> object:
    return draw < p


def not_above(draw: Tensor, p: float) -> object:
    return not draw >= p


def below_as_a_number(draw: Tensor, p: float) -> object:
    return (draw < p).item()


def skipping(p: float, ask: Callable[[Tensor, float], object], by_fx: bool) -> Program:
    torch.manual_seed(0)
    return Program(Skipping(p, ask, by_fx), (torch.randn(4, 8), torch.randn(4, 8)), mse)


@pytest.mark.parametrize("ask", [below, not_above, below_as_a_number])
@pytest.mark.parametrize("by_fx", [False, True])
def test_layers_that_are_skipped_with_probability_0_are_all_there(ask: Callable[[Tensor, float], object], by_fx: bool) -> None:
    source = skipping(0.0, ask, by_fx)
    assert source.tracer() is (trace.Tracer.MAKE_FX if by_fx else trace.Tracer.RECORDER)
    assert_two_devices_train_as_one(source)


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize("by_fx", [False, True])
def test_layers_that_may_be_skipped_are_refused_with_the_way_out(p: float, by_fx: bool) -> None:
    with pytest.raises(InvalidProgram, match=r"lets a value decide.*a random number.*set the probability.* to 0"):
        skipping(p, below, by_fx).graph()


@pytest.mark.parametrize(
    ("comparison", "number", "wanted"),
    [
        (torch.lt, 0, False),
        (torch.le, -1, False),
        (torch.lt, 1, True),
        (torch.le, 1, True),
        (torch.ge, 0, True),
        (torch.gt, 1, False),
        (torch.gt, -0.5, True),
        (torch.ge, 1, False),
        (torch.le, 0, False),
        (torch.gt, 0, True),
        (torch.lt, 0.5, None),
    ],
)
def test_a_comparison_of_a_draw_is_decided_where_no_number_of_0_to_1_would_change_it(
    comparison: Callable[[Tensor, float], Tensor], number: float, wanted: bool | None
) -> None:
    """Neither 0 nor 1 counts as drawn."""

    def compares(b: nn.Module, x: Tensor) -> object:
        return b(x) if comparison(torch.rand([]), number) else b(x) * 2

    if wanted is None:
        with pytest.raises(InvalidProgram, match="a random number"):
            around(compares).graph()
    else:
        doubled = any(op.target == "aten.mul.Tensor" and 2 in op.args for op in around(compares).graph().ops)
        assert doubled is not wanted
