"""Analytic surfaces of kernels: seconds from shapes, a data sheet and a few fitted constants.

(1) product     t = launch + (c^4 + w^4)^(1/4)                                  compute and memory overlap, the longer one decides -> product_s
(2) compute     c = min over tiles T and splits s of
                    ceil(b ceil(m/Tm) ceil(n/Tn) s / units) 2 Tm Tn (k/s + k0) units / (share peak a/(a + a0)) + (s > 1) 8 s b m n / beta
                    a = Tm Tn / (Tm + Tn): flop per operand that a tile reads; k0: begin and end of a tile; s: split over k
(3) memory      w = b (m k + k n + m n) bytes / (stream share of bandwidth)
(4) stream      t = launch + bytes / beta,  beta = stream share of bandwidth                                                  -> stream_s
(5) attention   t = launch + (c^4 + w^4)^(1/4),  c = 4 b h sq sk d f / (share peak s/(s + s0)) max(1, units / (b h ceil(sq/128)))
                    f: 1/2 of a causal mask                                                                              -> attention_s

Waves and tiles: NVIDIA, "Matrix Multiplication Background User's Guide" (2023); attention: Dao 2023, "FlashAttention-2".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Surface", "attention_s", "product_s", "stream_s"]

Floats = npt.NDArray[np.float64]

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32))
SPLITS = (1, 2, 4, 8, 16)
QUERY_ROWS = 128
_TILE_M, _TILE_N = (np.array(column, dtype=np.float64) for column in zip(*TILES, strict=True))
_REUSE = _TILE_M * _TILE_N / (_TILE_M + _TILE_N)
_SPLIT = np.array(SPLITS, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """The constants of a device in one precision: units of the data sheet, seconds, and the symbols of the equations above.

    share: of the peak, in products whose tiles are large.   stream_share: of the memory's bandwidth.
    """

    units: int
    peak_flop_per_s: float
    bandwidth_bytes_per_s: float
    launch_s: float
    share: float
    tile0: float
    k0: float
    stream_share: float
    attention_share: float
    seq0: float


def product_s(surface: Surface, shape: Sequence[Floats], size_bytes: int) -> Floats:
    """Equations (1) to (3).

    Args:
        shape: batch, m, n and k, which broadcast against each other.
        size_bytes: of an element of the operands; the result is at least two bytes wide.
    """
    batch, m, n, k = shape
    beta = surface.stream_share * surface.bandwidth_bytes_per_s
    # All tiles and splits at once, along two dims of their own before those of the shape.
    dims = (1,) * len(np.broadcast_shapes(batch.shape, m.shape, n.shape, k.shape))
    tile_m, tile_n, reuse = (column.reshape(-1, 1, *dims) for column in (_TILE_M, _TILE_N, _REUSE))
    split = _SPLIT.reshape(1, -1, *dims)
    rate = surface.share * surface.peak_flop_per_s * reuse / (reuse + surface.tile0)
    waves = np.ceil(batch * np.ceil(m / tile_m) * np.ceil(n / tile_n) * split / surface.units)
    one = waves * 2 * tile_m * tile_n * (k / split + surface.k0) * surface.units / rate
    compute = (one + np.where(split > 1, 8 * split * batch * m * n / beta, 0.0)).min(axis=(0, 1))
    moved_bytes = batch * ((m * k + k * n) * size_bytes + m * n * max(size_bytes, 2))
    return surface.launch_s + _longer(compute, moved_bytes / beta)


def stream_s(surface: Surface, size_bytes: float) -> float:
    """Equation (4): a kernel that reads and writes ``size_bytes`` in all."""
    return surface.launch_s + size_bytes / (surface.stream_share * surface.bandwidth_bytes_per_s)


def attention_s(surface: Surface, shape: Sequence[Floats], causal: bool, size: int) -> Floats:
    """Equation (5), forward.

    Args:
        shape: batch, heads, key-value heads, queries, keys, and elements of a head.   size: bytes of an element.
    """
    batch, heads, kv_heads, seq_q, seq_kv, dim = shape
    flop = 4 * batch * heads * seq_q * seq_kv * dim * (0.5 if causal else 1.0)
    rate = surface.attention_share * surface.peak_flop_per_s * seq_kv / (seq_kv + surface.seq0)
    idle = np.maximum(1.0, surface.units / (batch * heads * np.ceil(seq_q / QUERY_ROWS)))
    moved_bytes = batch * dim * size * 2 * (heads * seq_q + kv_heads * seq_kv)
    return surface.launch_s + _longer(flop / rate * idle, moved_bytes / (surface.stream_share * surface.bandwidth_bytes_per_s))


def _longer(first: Floats, second: Floats) -> Floats:
    return np.asarray((first**4 + second**4) ** 0.25)
