"""How a parameter's first values are made, as a value: draws, fills and arithmetic with numbers, each on a box of the parameter.

A step draws by element index (backend.initial.philox), or works elementwise in IEEE arithmetic (add, multiply, clamp, ...); so any box of the
result is bit-equal to that slice of the whole.  Functions that a vector unit rounds otherwise than the scalar one (exp, log) are none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from backend.initial.philox import stream_key, uniform_box
from backend.initial.values import Box, overlap
from backend.layout.views import box_view
from planner.ir.tensor import DType, TensorType

__all__ = [
    "Arithmetic",
    "Cast",
    "Change",
    "Distribution",
    "Draw",
    "Fill",
    "Normal",
    "Recipe",
    "Step",
    "TruncatedNormal",
    "Uniform",
    "filled",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    mean: float = 0.0
    std: float = 1.0

    def from_uniform(self, u: Tensor) -> Tensor:
        drawn: Tensor = torch.special.ndtri(u)
        return drawn.mul_(self.std).add_(self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """On [low, high)."""

    low: float = 0.0
    high: float = 1.0

    def from_uniform(self, u: Tensor) -> Tensor:
        return u.mul(self.high - self.low).add_(self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedNormal:
    """Normal(mean, std), given that it lies in [low, high]."""

    mean: float = 0.0
    std: float = 1.0
    low: float = -2.0
    high: float = 2.0

    def from_uniform(self, u: Tensor) -> Tensor:
        low, high = (_normal_cdf((x - self.mean) / self.std) for x in (self.low, self.high))
        drawn: Tensor = torch.special.ndtri(u.mul(high - low).add_(low))
        return drawn.mul_(self.std).add_(self.mean).clamp_(self.low, self.high)


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


Distribution = Normal | Uniform | TruncatedNormal


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """``key`` names the stream: what was copied from one tensor to another keeps it, and so stays equal."""

    distribution: Distribution
    key: str
    where: Box | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Zeros are Fill(value=0.0), ones Fill(value=1.0); integers and booleans are converted."""

    value: float
    where: Box | None = None


class Arithmetic(Enum):
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    NEG = "neg"
    ABS = "abs"
    SQRT = "sqrt"
    CLAMP = "clamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Every element x -> x op numbers; CLAMP has two numbers, either of which may be infinite."""

    op: Arithmetic
    numbers: tuple[float, ...] = ()
    where: Box | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    dtype: DType


Step = Draw | Fill | Change | Cast


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """``shape`` of the whole; ``dtype`` before the first step.  Draws and fills together reach every element."""

    shape: tuple[int, ...]
    dtype: DType
    steps: tuple[Step, ...]

    @property
    def type(self) -> TensorType:
        casts = [step.dtype for step in self.steps if isinstance(step, Cast)]
        return TensorType(self.shape, casts[-1] if casts else self.dtype)

    def part(self, seed: int, box: Box) -> Tensor:
        """The box of the values that ``seed`` gives."""
        value = torch.empty([length for _, length in box], dtype=getattr(torch, self.dtype.value))
        for step in self.steps:
            if isinstance(step, Cast):
                value = value.to(getattr(torch, step.dtype.value))
                continue
            shared = box if step.where is None else overlap(box, step.where)
            if shared is None or not value.numel():
                continue
            inner = tuple((offset - base, length) for (offset, length), (base, _) in zip(shared, box, strict=True))
            target = box_view(value, inner)
            match step:
                case Draw(distribution=distribution, key=key):
                    target.copy_(distribution.from_uniform(uniform_box(stream_key(seed, key), self.shape, shared)))
                case Fill(value=number):
                    target.fill_(number)
                case Change(op=op, numbers=numbers):
                    target.copy_(_CHANGES[op](target, numbers))
        return value


_CHANGES: dict[Arithmetic, Callable[[Tensor, tuple[float, ...]], Tensor]] = {
    Arithmetic.ADD: lambda x, n: x + n[0],
    Arithmetic.SUB: lambda x, n: x - n[0],
    Arithmetic.MUL: lambda x, n: x * n[0],
    Arithmetic.DIV: lambda x, n: x / n[0],
    Arithmetic.NEG: lambda x, n: -x,
    Arithmetic.ABS: lambda x, n: x.abs(),
    Arithmetic.SQRT: lambda x, n: x.sqrt(),
    Arithmetic.CLAMP: lambda x, n: x.clamp(n[0], n[1]),
}


def filled(shape: tuple[int, ...], dtype: DType, value: float = 0.0) -> Recipe:
    return Recipe(shape=shape, dtype=dtype, steps=(Fill(value=value),))
