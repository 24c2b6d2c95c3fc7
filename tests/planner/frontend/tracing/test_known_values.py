"""Values of what is computed of constants alone are known while a step is traced; those that depend on a batch, parameters or draws are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.frontend import Program
from planner.frontend.tracing import trace
from planner.ir.errors import InvalidProgram
from tests.planner.frontend.programs import assert_two_devices_train_as_one, closed, mse


class Asking(nn.Module):
    """Its output is scaled by what ``ask`` makes of a constant of the module; a buffer and a parameter have the same values."""

    def __init__(self, ask: Callable[[Asking, Tensor], float]) -> None:
        super().__init__()
        self.layer, self.ask = nn.Linear(8, 8), ask
        self.sizes = torch.tensor([2, 6])
        self.register_buffer("kept", torch.tensor([2, 6]))
        self.learned = nn.Parameter(torch.tensor([2.0, 6.0]))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) * self.ask(self, x) + self.learned.sum() + self.kept.sum()
        return made


def program(ask: Callable[[Asking, Tensor], float]) -> Program:
    torch.manual_seed(0)
    return Program(Asking(ask), (torch.randn(4, 8), torch.randn(4, 8)), mse)


def grids(_: Asking, x: Tensor) -> float:
    return sum(high * wide for high, wide in torch.tensor([[1, 4], [2, 3]]).tolist())


def largest(_: Asking, x: Tensor) -> float:
    return int(torch.tensor([[1, 4], [2, 3]]).max())


def element(_: Asking, x: Tensor) -> float:
    return x[:, : torch.tensor([[1, 4]])[0, 1]].shape[1]


def steps(_: Asking, x: Tensor) -> float:
    return sum(1.0 / int(index + 1) for index in torch.arange(2))


def spread(_: Asking, x: Tensor) -> float:
    return sum(torch.linspace(0, 0.1, 3).tolist())


def mean(m: Asking, x: Tensor) -> float:
    return float(m.sizes.float().mean())


def written(_: Asking, x: Tensor) -> float:
    count = torch.ones(())
    count.add_(4)
    return count.item()


def branch(m: Asking, x: Tensor) -> float:
    return 2.0 if (m.sizes > 3).any() else 3.0


def placed(m: Asking, x: Tensor) -> float:
    return float(m.sizes[m.sizes > 3].sum())


def repeated(_: Asking, x: Tensor) -> float:
    return torch.repeat_interleave(torch.arange(2), torch.tensor([1, 3])).shape[0]


def different(m: Asking, x: Tensor) -> float:
    return len(m.sizes.unique())


def split_by(m: Asking, x: Tensor) -> float:
    return sum(part.shape[1] ** 2 for part in x.split(m.sizes.tolist(), 1))


KNOWN = [grids, largest, element, steps, spread, mean, written, branch, placed, repeated, different, split_by]
BY_BOTH = [grids, largest, element, steps, spread, written]
"""make_fx, which serves where the recorder cannot, knows the values of what is made in forward; of nonzero and the like it knows none."""


@pytest.mark.parametrize(("ask", "other"), [*((ask, "_made_fx") for ask in KNOWN), *((ask, "_recorded") for ask in BY_BOTH)])
def test_a_step_that_asks_constants_trains_as_in_torch(
    ask: Callable[[Asking, Tensor], float], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, other, closed)
    source = program(ask)
    assert_two_devices_train_as_one(source)


def of_the_batch(_: Asking, x: Tensor) -> float:
    return x.sum().item()


def beside_the_batch(_: Asking, x: Tensor) -> float:
    return (torch.tensor(2.0) * x[0, 0]).item()


def of_a_parameter(m: Asking, x: Tensor) -> float:
    return float(m.learned.max())


def of_a_draw(_: Asking, x: Tensor) -> float:
    return torch.rand(()).item()


def list_of_the_batch(_: Asking, x: Tensor) -> float:
    return x.sum(0).tolist()[0]  # type: ignore[no-any-return]


def places_in_the_batch(_: Asking, x: Tensor) -> float:
    return x.nonzero().shape[0]


def behind_many_layers(_: Asking, x: Tensor) -> float:
    for _step in range(1500):
        x = x + 1
    return x.sum().item()


def of_many_elements(_: Asking, x: Tensor) -> float:
    return torch.zeros(2000, 1000).sum().item()


@pytest.mark.parametrize(
    "ask",
    [
        of_the_batch,
        beside_the_batch,
        of_a_parameter,
        of_a_draw,
        list_of_the_batch,
        places_in_the_batch,
        behind_many_layers,
        of_many_elements,
    ],
)
def test_what_depends_on_more_than_constants_stays_refused(ask: Callable[[Asking, Tensor], float]) -> None:
    with pytest.raises(InvalidProgram, match="lets a value decide what is computed"):
        program(ask).graph()


def test_the_refusal_says_how_a_value_becomes_known() -> None:
    with pytest.raises(InvalidProgram, match=r"may come from torch.tensor\(\[...\]\) in forward"):
        program(of_the_batch).graph()
