"""Draws by counter: each element of a random tensor is a function of the seed, the step, the op and the element's place in the whole tensor.

    (1)  e      = micro_batch * numel(whole) + row-major number of the element in ``whole``, the tensor of one micro-batch
    (2)  word   = word e mod 4 of Philox(counter = (low e div 4, high e div 4, draw, step), key = (low seed, high seed))
    (3)  u      = (word >> 32 - b) 2^-b       b bits: 24 for float32, as many as the dtype holds, at most 32        -> uniform()
    (4)  k      = word < round(2^32 p)        1 with probability p                                                  -> bernoulli()
    (5)  y      = x (k / divisor)             dropout; its gradient is the same function of the incoming gradient   -> dropout()

``offsets`` say where a part begins in ``whole``; empty: at the origin.  So N devices draw what one device draws, whatever the layout, and
where the batch is the outermost dim of a tensor (1) numbers the elements of the whole batch: the number of micro-batches changes nothing.
``draw`` numbers the random ops of a program: an op that is performed again, or in several places, draws the same again.

The functions are the kernels; as custom ops of torch (``regista::dropout``) they can be traced.  CPUs take compiled loops
(planner.frontend.random.words), CUDA devices a kernel of Triton (words_on_gpu), and what has neither integer arithmetic of torch (philox):
all give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import prod

import numpy as np
import torch
from torch import Tensor

from planner.frontend.random.philox import philox
from planner.frontend.random.rows import rows_of

__all__ = ["DRAWS", "KERNELS", "RANDOM_STATE", "bernoulli", "dropout", "uniform", "words"]

_WORD = 0xFFFFFFFF
_BITS = {torch.float32: 24, torch.float64: 32, torch.float16: 11, torch.bfloat16: 8}
_COMPILED = (torch.float32, torch.float64)
_SHORT = (torch.float16, torch.bfloat16)
_BY_TRITON = (torch.float32, *_SHORT)
_HAS_TRITON = find_spec("triton") is not None
_NUMPY: dict[torch.dtype, type[np.float32] | type[np.float64]] = {torch.float32: np.float32, torch.float64: np.float64}


def words(
    seed: Tensor, steps: Tensor, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int], draw: int, micro_batch: int
) -> Tensor:
    """Equation (2) for a part of ``shape``: int64 [*shape], each between 0 and 2^32 - 1."""
    if seed.is_cpu:
        made = _compiled_words(seed, steps, shape, whole, offsets, draw, micro_batch)
        return torch.from_numpy(made.astype(np.int64)).reshape(tuple(shape))
    starts, length = _starts(shape, whole, offsets, micro_batch)
    if seed.is_cuda and _HAS_TRITON:
        from planner.frontend.random.words_on_gpu import words_on_gpu  # late: Triton takes some tenths of a second to load

        return words_on_gpu(seed, steps, starts, length, draw).reshape(tuple(shape))
    return _words_by_torch(seed, steps, starts, length, draw).reshape(tuple(shape))


def _compiled_words(
    seed: Tensor, steps: Tensor, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int], draw: int, micro_batch: int
) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    from planner.frontend.random.words import fill_words  # late: numba takes some tenths of a second to load

    starts, length = _starts(shape, whole, offsets, micro_batch)
    made = np.empty(len(starts) * length, dtype=np.uint32)
    fill_words(starts, length, draw, int(steps), int(seed), made)
    return made


def _words_by_torch(seed: Tensor, steps: Tensor, starts: np.ndarray[tuple[int], np.dtype[np.int64]], length: int, draw: int) -> Tensor:
    device = seed.device
    element = (torch.from_numpy(starts).to(device)[:, None] + torch.arange(length, device=device)).reshape(-1)
    block, lane = element >> 2, element & 3
    counter = (block & _WORD, (block >> 32) & _WORD, torch.full_like(block, draw), (steps & _WORD).expand_as(block))
    four = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return torch.where(lane < 2, torch.where(lane == 0, four[0], four[1]), torch.where(lane == 2, four[2], four[3]))


def _starts(
    shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int], micro_batch: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Equation (1): the number of the first element of each row, and how long rows are."""
    rows = rows_of(tuple(whole), tuple(shape), tuple(offsets))
    return (rows.starts + micro_batch * prod(whole) if micro_batch else rows.starts), rows.length


def uniform(
    seed: Tensor,
    steps: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: int = 0,
) -> Tensor:
    """Equation (3): numbers in [0, 1) of ``dtype``, [*size]."""
    bits = _BITS[dtype]
    if seed.is_cpu and dtype in _COMPILED:
        made = _compiled_words(seed, steps, size, whole, offsets, draw, micro_batch)
        np.right_shift(made, np.uint32(32 - bits), out=made)
        # below 2^31 a word is the same signed; numpy converts unsigned numbers slowly
        numbers = torch.from_numpy(made.view(np.int32)).to(dtype) if bits < 32 else torch.from_numpy(made.astype(_NUMPY[dtype]))
        return numbers.mul_(2.0**-bits).reshape(tuple(size))
    drawn = words(seed, steps, size, whole, offsets, draw, micro_batch) >> (32 - bits)
    return drawn.to(torch.float64).mul_(2.0**-bits).to(dtype)


def bernoulli(
    seed: Tensor,
    steps: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    p: float,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: int = 0,
) -> Tensor:
    """Equation (4): 1 with probability p, else 0, of ``dtype``, [*size]."""
    if seed.is_cpu and dtype in _COMPILED:
        ones = torch.ones(tuple(size), dtype=dtype)
        return dropout(ones, seed, steps, p, 1.0, whole, offsets, draw, micro_batch, out=ones)
    return (words(seed, steps, size, whole, offsets, draw, micro_batch) < _threshold(p)).to(dtype)


def dropout(
    x: Tensor,
    seed: Tensor,
    steps: Tensor,
    p: float,
    divisor: float,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: int = 0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Equation (5): x kept with probability p and divided by ``divisor``, else 0; row-major, whatever the strides of x.

    Args:
        out: memory of x's shape for the result.
    """
    kept, threshold = _kept(x.dtype, divisor), _threshold(p)
    if x.is_cpu and x.dtype in _SHORT:
        return torch.mul(x, _short_noise(x, seed, steps, threshold, kept, whole, offsets, draw, micro_batch), out=out)
    by_triton = x.is_cuda and _HAS_TRITON and x.dtype in _BY_TRITON
    if not by_triton and not (x.is_cpu and x.dtype in _COMPILED):
        noise = (words(seed, steps, x.shape, whole, offsets, draw, micro_batch) < threshold).to(x.dtype) * kept
        return x.mul(noise) if out is None else torch.mul(x, noise, out=out)
    packed = x.contiguous()
    made = out if out is not None and out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    starts, length = _starts(x.shape, whole, offsets, micro_batch)
    if by_triton:
        from planner.frontend.random.words_on_gpu import dropped_on_gpu  # late, as above

        dropped_on_gpu(packed, made, seed, steps, starts, length, draw, threshold, kept if threshold else 0.0)
    else:
        _drop_on_cpu(packed, made, seed, steps, starts, length, draw, threshold, kept)
    return made if out is None or made is out else out.copy_(made)


def _drop_on_cpu(
    packed: Tensor,
    made: Tensor,
    seed: Tensor,
    steps: Tensor,
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    length: int,
    draw: int,
    threshold: int,
    kept: float,
) -> None:
    from planner.frontend.random.words import dropped  # late, as above

    number = _NUMPY[packed.dtype]
    factor = number(kept if threshold else 0.0)
    dropped(
        packed.reshape(-1).numpy(),
        made.view(-1).numpy(),
        starts,
        length,
        draw,
        int(steps),
        int(seed),
        max(threshold - 1, 0),
        factor,
        number(0),
    )


def _short_noise(
    x: Tensor,
    seed: Tensor,
    steps: Tensor,
    threshold: int,
    kept: float,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: int,
) -> Tensor:
    """``kept`` or 0 for every element of x, in a format of 16 bits, which compiled loops know as bits alone."""
    from planner.frontend.random.words import fill_bits  # late, as above

    starts, length = _starts(x.shape, whole, offsets, micro_batch)
    bits = np.empty(len(starts) * length, dtype=np.int16)
    pattern = int(torch.tensor(kept if threshold else 0.0, dtype=x.dtype).view(torch.int16))
    fill_bits(starts, length, draw, int(steps), int(seed), max(threshold - 1, 0), np.int16(pattern), bits)
    return torch.from_numpy(bits).view(x.dtype).reshape(x.shape)


def _threshold(p: float) -> int:
    return round(p * 2**32)


@lru_cache(maxsize=1024)
def _kept(dtype: torch.dtype, divisor: float) -> float:
    """1 / divisor as torch divides a tensor of ones by a number; 0 where nothing is kept."""
    return float(torch.ones((), dtype=dtype).div_(divisor)) if divisor else 0.0


KERNELS: dict[str, Callable[..., Tensor]] = {
    "regista.uniform": uniform,
    "regista.bernoulli": bernoulli,
    "regista.dropout": dropout,
}
"""Target -> the function that performs it; offsets in the place of cuts, then the draw and the micro-batch."""


DRAWS = frozenset({"regista.uniform.default", "regista.bernoulli.default"})
"""What the tracer records; the last argument is the draw's number."""

RANDOM_STATE = ("random:seed", "random:steps")
"""Names of the state that random ops draw from: int64 scalars."""


@torch.library.custom_op("regista::uniform", mutates_args=())
def _uniform(
    seed: Tensor,
    steps: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    whole: Sequence[int],
    cuts: Sequence[int],
    draw: int,
    micro_batch: int = 0,
) -> Tensor:
    return uniform(seed, steps, size, dtype, whole, cuts, draw, micro_batch)


@torch.library.custom_op("regista::bernoulli", mutates_args=())
def _bernoulli(
    seed: Tensor,
    steps: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    p: float,
    whole: Sequence[int],
    cuts: Sequence[int],
    draw: int,
    micro_batch: int = 0,
) -> Tensor:
    return bernoulli(seed, steps, size, dtype, p, whole, cuts, draw, micro_batch)


@_uniform.register_fake
@_bernoulli.register_fake
def _drawn_type(seed: Tensor, steps: Tensor, size: Sequence[int], dtype: torch.dtype, *_: object) -> Tensor:
    return seed.new_empty(list(size), dtype=dtype)
