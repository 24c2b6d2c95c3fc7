"""torch's random ops by draws of ours: what each of them becomes, above one uniform number or one Bernoulli number per element.

    bernoulli(p)           one Bernoulli number                    exponential(l)      -log(1 - u) / l
    uniform(a, b)          a + (b - a) u                           cauchy(m, s)        m + s tan(pi (u - 1/2))
    normal(m, s)           m + s sqrt(-2 log(1 - u)) cos(2 pi v)   geometric(p)        ceil(log(1 - u) / log(1 - p)), at least 1
    randint(a, b)          a + floor((b - a) u)                    log_normal(m, s)    exp(normal(m, s))
    randperm(n)            places of n numbers u in their order
    multinomial(w, k)      places of the k largest w / exponential(1), which is drawing without replacement   [Efraimidis & Spirakis 2006]

u and v are two draws [Box & Muller 1958].  Statistics of a low precision are those of float32, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from planner.frontend.random.drawing import Drawing
from planner.ir.errors import Unsupported

__all__ = ["in_place", "random_table"]

aten = torch.ops.aten

_WIDE = (torch.float32, torch.float64)


def random_table() -> dict[OpOverload, Callable[..., object]]:
    """Op overload -> the function that draws it by counter, within ``drawing``."""
    return {
        aten.bernoulli.default: _bernoulli_of,
        aten.bernoulli.p: _bernoulli,
        aten.bernoulli.Tensor: _bernoulli_like,
        aten.cauchy.default: _cauchy,
        aten.exponential.default: _exponential,
        aten.geometric.default: _geometric,
        aten.log_normal.default: _log_normal,
        aten.multinomial.default: _multinomial,
        aten.native_dropout.default: _native_dropout,
        aten.normal.Tensor_Tensor: _normal_of,
        aten.normal.Tensor_float: _normal_of,
        aten.normal.float_Tensor: _normal_of,
        aten.normal.float_float: _normal_sized,
        aten.normal_functional.default: _normal,
        aten.rand.default: _rand,
        aten.rand_like.default: _rand_like,
        aten.randint.default: _randint,
        aten.randint.low: _randint_low,
        aten.randint_like.default: _randint_like,
        aten.randint_like.low_dtype: _randint_like_low,
        aten.randn.default: _randn,
        aten.randn_like.default: _randn_like,
        aten.randperm.default: _randperm,
        getattr(aten.random, "from"): _random,
        aten.random.to: _random_to,
        aten.rrelu_with_noise_functional.default: _rrelu,
        aten.uniform.default: _uniform,
    }


def in_place() -> dict[OpOverload, tuple[OpOverload, int, int]]:
    """Ops that write what they draw -> their functional twin, which argument they write, which of the twin's results they return."""
    twins = {
        aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
        aten.bernoulli_.float: aten.bernoulli.p,
        aten.cauchy_.default: aten.cauchy.default,
        aten.exponential_.default: aten.exponential.default,
        aten.geometric_.default: aten.geometric.default,
        aten.log_normal_.default: aten.log_normal.default,
        aten.normal_.default: aten.normal_functional.default,
        getattr(aten.random_, "from"): getattr(aten.random, "from"),
        aten.random_.to: aten.random.to,
        aten.uniform_.default: aten.uniform.default,
    }
    return {op: (twin, 0, 0) for op, twin in twins.items()} | {
        aten.rrelu_with_noise.default: (aten.rrelu_with_noise_functional.default, 1, 0)
    }


def uniform(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A new draw, in [0, 1)."""
    if not dtype.is_floating_point:
        raise Unsupported(f"uniform numbers of dtype {dtype} are not drawn; draw float32 and convert")
    values = Drawing.current()
    size = [int(extent) for extent in size]
    made: Tensor = torch.ops.regista.uniform(*values.state, size, dtype, size, [], values.next_number(), values.micro_batch)
    return made


def bernoulli(size: Sequence[int], dtype: torch.dtype, p: float) -> Tensor:
    """A new draw: 1 with probability p, else 0."""
    values = Drawing.current()
    size = [int(extent) for extent in size]
    made: Tensor = torch.ops.regista.bernoulli(*values.state, size, dtype, p, size, [], values.next_number(), values.micro_batch)
    return made


def _refuse_generator(generator: object) -> None:
    if generator is not None:
        raise Unsupported("the step draws from a generator of its own, which no other device has; leave the generator out")


def _positive(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A new draw in (0, 1]."""
    return 1 - uniform(size, dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in _WIDE else torch.float32


def standard_normal(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    wide = _wide(dtype)
    radius = (-2 * _positive(size, wide).log()).sqrt()
    return (radius * (2 * math.pi * uniform(size, wide)).cos()).to(dtype)


def _standard_exponential(size: Sequence[int], dtype: torch.dtype) -> Tensor:
    return -_positive(size, _wide(dtype)).log()


def _bernoulli(self: Tensor, p: float = 0.5, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    return bernoulli(self.shape, self.dtype, p)


def _bernoulli_of(self: Tensor, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    return (uniform(self.shape, _wide(self.dtype)) < self).to(self.dtype)


def _bernoulli_like(self: Tensor, p: Tensor, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    return (uniform(self.shape, _wide(p.dtype)) < p).to(self.dtype)


def _uniform(self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: object = None, **named: float) -> Tensor:
    _refuse_generator(generator)
    low = named.get("from", from_)
    drawn = uniform(self.shape, self.dtype)
    return drawn if (low, to) == (0.0, 1.0) else drawn * (to - low) + low


def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    drawn = standard_normal(self.shape, self.dtype)
    return drawn if (mean, std) == (0.0, 1.0) else drawn * std + mean


def _normal_of(mean: Tensor | float, std: Tensor | float = 1.0, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(value.shape for value in tensors))  # type: ignore[no-untyped-call]
    return standard_normal(shape, tensors[0].dtype) * std + mean


def _normal_sized(
    mean: float, std: float, size: Sequence[int], *, generator: object = None, dtype: torch.dtype | None = None, **_: object
) -> Tensor:
    _refuse_generator(generator)
    return standard_normal(size, dtype or torch.get_default_dtype()) * std + mean


def _log_normal(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: object = None) -> Tensor:
    return _normal(self, mean, std, generator=generator).exp()


def _exponential(self: Tensor, lambd: float = 1.0, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    drawn = _standard_exponential(self.shape, self.dtype)
    return (drawn if lambd == 1.0 else drawn / lambd).to(self.dtype)


def _cauchy(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    angle = math.pi * (uniform(self.shape, _wide(self.dtype)) - 0.5)
    return (median + sigma * (angle.sin() / angle.cos())).to(self.dtype)


def _geometric(self: Tensor, p: float, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    return (_positive(self.shape, _wide(self.dtype)).log() / math.log1p(-p)).ceil().clamp(min=1.0).to(self.dtype)


def _rand(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return uniform(size, dtype or torch.get_default_dtype())


def _rand_like(self: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return uniform(self.shape, dtype or self.dtype)


def _randn(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return standard_normal(size, dtype or torch.get_default_dtype())


def _randn_like(self: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return standard_normal(self.shape, dtype or self.dtype)


def _integers(size: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Tensor:
    if high - low > 1 << 32:
        raise Unsupported(f"integers between {low} and {high}: a draw has 32 bits; draw from a shorter range")
    return ((uniform(size, torch.float64) * (high - low)).floor() + low).to(dtype)


def _randint(high: int, size: Sequence[int], *, dtype: torch.dtype | None = torch.int64, **_: object) -> Tensor:
    return _integers(size, 0, high, dtype or torch.int64)


def _randint_low(low: int, high: int, size: Sequence[int], *, dtype: torch.dtype | None = torch.int64, **_: object) -> Tensor:
    return _integers(size, low, high, dtype or torch.int64)


def _randint_like(self: Tensor, high: int, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return _integers(self.shape, 0, high, dtype or self.dtype)


def _randint_like_low(self: Tensor, low: int, high: int, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return _integers(self.shape, low, high, dtype or self.dtype)


def _randperm(n: int, *, dtype: torch.dtype | None = torch.int64, **_: object) -> Tensor:
    return uniform([n], torch.float64).argsort().to(dtype or torch.int64)


def _random(self: Tensor, from_: int, to: int | None, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    if to is None:
        raise Unsupported("random_() without an upper end draws the whole range of its dtype; give both ends")
    return _integers(self.shape, from_, to, self.dtype)


def _random_to(self: Tensor, to: int, *, generator: object = None) -> Tensor:
    return _random(self, 0, to, generator=generator)


def _multinomial(self: Tensor, num_samples: int, replacement: bool = False, *, generator: object = None) -> Tensor:
    _refuse_generator(generator)
    if replacement and num_samples > 1:
        weights = self.unsqueeze(-2).expand(*self.shape[:-1], num_samples, self.shape[-1])
        return (weights / _standard_exponential(weights.shape, self.dtype)).argmax(-1)
    scores = self / _standard_exponential(self.shape, self.dtype)
    return scores.argmax(-1, keepdim=True) if num_samples == 1 else scores.topk(num_samples, -1).indices


def _native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    kept = bernoulli(input.shape, input.dtype, 1 - p)
    return input * (kept / (1 - p) if p < 1 else kept), kept.to(torch.bool)


def _rrelu(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: object = None
) -> tuple[Tensor, Tensor]:
    _refuse_generator(generator)
    if not training:
        return torch.where(self > 0, self, self * ((lower + upper) / 2)), noise
    slope = torch.where(self > 0, torch.ones_like(self), uniform(self.shape, self.dtype) * (upper - lower) + lower)
    return self * slope, slope
