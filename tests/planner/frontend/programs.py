"""Small programs that several tests of the front end trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import matrix
import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from oracle import Outcome, train_eagerly
from torch import Tensor, nn

import regista
from backend.reference import perform
from planner.frontend import SGD, AdamW, Program
from planner.ir.errors import InvalidProgram
from planner.ir.graph import LogicalGraph
from zoo import ZOO

__all__ = [
    "RNG", "SMALL", "X", "Y", "Around", "around", "assert_close", "assert_transparent", "assert_two_devices_train_as_one", "closed", "mse", "zoo",
]  # fmt: skip

SMALL = {
    "mlp": {"batch": 8, "width": 16, "hidden": 32},
    "gpt": {"batch": 4, "seq": 8, "width": 32, "heads": 4, "vocab": 64, "layers": 2},
    "convnet": {"batch": 8, "channels": 4, "size": 8},
}
RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 6, 8, generator=RNG), torch.randn(4, 6, 8, generator=RNG)


def mse(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


class Around(nn.Module):
    """A body and a function of it: forward(*inputs) = function(body, *inputs)."""

    def __init__(self, body: nn.Module, function: Callable[..., object]) -> None:
        super().__init__()
        self.body = body
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self.body, *inputs)


def zoo(name: str, optimizer: SGD | AdamW | str = "sgd") -> Program:
    program = ZOO[name](**SMALL[name])
    return Program(program.module, program.example_inputs, program.loss, optimizer, data=program.data)


def around(function: Callable[..., object], body: nn.Module | None = None, loss: Callable[..., object] | None = mse) -> Program:
    torch.manual_seed(0)
    return Program(Around(body or nn.Linear(8, 8), function), (X, Y), loss)


def assert_close(outcome: Outcome, expected: Outcome, *, parameters: float = 1e-6) -> None:
    assert outcome.losses == pytest.approx(expected.losses, rel=1e-5)
    rows = (
        (outcome.gradients_of_last_step, expected.gradients_of_last_step, 1e-6),
        (outcome.parameters, expected.parameters, parameters),
        (outcome.buffers, expected.buffers, 1e-6),
    )
    for values, wanted, atol in rows:
        assert values.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(values[name], value, rtol=1e-5, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


def closed(*_: object) -> NoReturn:
    """In the place of a tracer that is not to serve."""
    raise InvalidProgram("closed")


def assert_two_devices_train_as_one(program: Program) -> None:
    """A data-parallel plan, performed for two steps."""
    plan = regista.plan(program, "local:2", pins=["input.*=S(0)"])
    outcome = perform(plan, program.initial_state(), program.batch, 2, gradients=True)
    matrix.assert_transparent(outcome, train_eagerly(program, 1, 2))


def assert_transparent(program: Program, micro_batches: int, steps: int = 3, *, parameters: float = 1e-6) -> LogicalGraph:
    graph = program.graph(micro_batches)
    expected = train_eagerly(program, micro_batches, steps)
    assert_close(interpret(program, graph, micro_batches, steps), expected, parameters=parameters)
    return graph


# -- transparency: the graph means what eager training does ---------------------------------------------------------------------
