"""Parametrised, compiled and copied parameters: what makes a weight in forward, or changes one there, trains as in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from oracle import train_eagerly
from six_ways import SIX_WAYS, assert_trains_alike
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram

STEPS = 2


class Teacher(nn.Module):
    """A trained layer and a frozen one that follows it in forward, as ``follow`` says; x [batch, 8] -> [batch, 8]."""

    def __init__(self, follow: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.student, self.teacher, self.last = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
        self.follow = (follow,)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for kept, trained in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                self.follow[0](kept, trained)
        out: Tensor = self.last(self.student(x).tanh() + 0.5 * self.teacher(x))
        return out


def _replaced(kept: Tensor, trained: Tensor) -> None:
    kept.data = kept.data * 0.9 + trained.data * 0.1


class Follower(nn.Module):
    """A buffer that follows a trained weight in the first layer, and that the last one reads; in a pipeline it waited for ever."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("kept", torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        self.kept = 0.9 * self.kept + 0.1 * self.first.weight.detach()
        out: Tensor = self.last(self.first(x).tanh() + x @ self.kept)
        return out


class Tied(nn.Module):
    """Two layers share a weight that a parametrisation makes; ``cached``: it is made once per forward."""

    def __init__(self, parametrised: Callable[[nn.Module], object], *, cached: bool) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        parametrised(self.first)
        self.cached = cached

    def forward(self, x: Tensor) -> Tensor:
        with parametrize.cached() if self.cached else torch.enable_grad():
            return F.linear(self.last(self.second(self.first(x)).tanh()), self.first.weight)


class CompiledInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.compile(nn.Linear(8, 8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.compile(torch.tanh)(self.first(x)))
        return out


def _around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), layer, nn.Tanh(), nn.Linear(8, 8))


def _compiled_in_place() -> nn.Module:
    module = _around(nn.Linear(8, 8))
    module.compile()
    return module


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "teacher in place": lambda: Teacher(lambda kept, trained: kept.mul_(0.9).add_(trained, alpha=0.1)),
    "teacher by lerp_": lambda: Teacher(lambda kept, trained: kept.lerp_(trained, 0.1)),
    "teacher by copy_": lambda: Teacher(lambda kept, trained: kept.copy_(0.9 * kept + 0.1 * trained)),
    "teacher by data": lambda: Teacher(_replaced),
    "buffer that follows": Follower,
    "weight norm": lambda: _around(parametrizations.weight_norm(nn.Linear(8, 8))),
    "spectral norm": lambda: _around(parametrizations.spectral_norm(nn.Linear(8, 8))),
    "orthogonal": lambda: _around(parametrizations.orthogonal(nn.Linear(8, 8))),
    "orthogonal by cayley": lambda: _around(parametrizations.orthogonal(nn.Linear(8, 8), orthogonal_map="cayley")),
    "tied weight norm": lambda: Tied(parametrizations.weight_norm, cached=False),
    "tied spectral norm": lambda: Tied(parametrizations.spectral_norm, cached=False),
    "tied orthogonal, cached": lambda: Tied(parametrizations.orthogonal, cached=True),
    "old spectral norm": lambda: _around(nn.utils.spectral_norm(nn.Linear(8, 8))),
    "compiled": lambda: torch.compile(_around(nn.Linear(8, 8))),  # type: ignore[dict-item, return-value]
    "compiled in place": _compiled_in_place,
    "compiled inside": CompiledInside,
}

CASES = [
    pytest.param(name, way, marks=() if (name, way) == ("teacher by data", "stages") else pytest.mark.thorough)
    for name in MODULES
    for way in SIX_WAYS
]


def _program(module: nn.Module) -> Program:
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
    return Program(module, batch, F.mse_loss, SGD(lr=0.1), name="special")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_weight_that_forward_makes_or_changes_trains_as_in_plain_pytorch(name: str, way: str) -> None:
    torch.manual_seed(0)
    program = _program(MODULES[name]())
    assert_trains_alike(program, way, lambda micro_batches: train_eagerly(program, micro_batches, STEPS), STEPS)


def test_a_trained_weight_that_forward_replaces_is_refused() -> None:
    """A past bug: the new weight was dropped without an error, and the plan trained with the old one."""

    class Halved(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data = self.weight.data * 0.5
            return super().forward(x)

    with pytest.raises(InvalidProgram, match="changes parameter weight in place"):
        _program(Halved(8, 8)).graph()
