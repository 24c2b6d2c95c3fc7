"""KernelModel: seconds of a kernel on one device, by shape and precision, from its table and its surface.

product in bfloat16, float16    surface x measured ratio of the device (or of the one that it is like)      [measured, or scaled]
... in float8, tf32             the same with that precision's peak and bytes                               [scaled by the peaks]
... in float32, float64         surface fitted to float32 products x the ratio of the nearest               [measured, or scaled]
attention                       surface x measured ratio, forward; backward: 5 products where forward has 2, at BACKWARD_RATE of its rate
convolution                     the product that it is, at a share of its rate, in tf32 where a float32 one may be; filters of 3 x 3 that
                                move by one take fewer multiplications in float32 (Winograd)                      [fitted, or assumed]
anything else                   the longer of bytes / achieved bandwidth and flop / (OTHER_SHARE peak), and the launch
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property, lru_cache
from math import ceil

import numpy as np

from planner.cost.kernels.convolutions import convolution_rates
from planner.cost.kernels.devices import DeviceSheet, Precision, device_sheet
from planner.cost.kernels.surface import QUERY_ROWS, Surface, attention_s, product_s, stream_s
from planner.cost.kernels.tables import (
    GENERIC,
    PRODUCT_SCALE,
    attention_features,
    attention_ratios,
    constants,
    product_ratios,
    scattered_products,
    surface_of,
)
from planner.ir.errors import Unsupported
from planner.ir.graph import KernelKind, KernelWork
from planner.ir.tensor import DType

__all__ = ["Basis", "KernelModel"]

BACKWARD_FLOP = 2.5
"""Five products instead of two: the scores are computed again  [Dao 2023, FlashAttention-2]."""
BACKWARD_RATE = 0.85
"""Assumed: of the forward rate.  The figures of FlashAttention-2 and FlashAttention-3 show 0.8 to 0.9 for 2,048 tokens and more."""
UPDATE_BYTES = 30.0
"""Per parameter, of a fused Adam with float32 master: reads gradient, master and two moments, writes these three and a 2-byte copy."""

OTHER_SHARE = 0.5
"""Assumed: of the peak, in what computes much and is neither product, convolution nor attention (recurrent layers, decompositions)."""

_ABOVE_PEAK = 1.02
"""No product is quicker than the data sheet's peak by this; some in float32 are by 0.1 %, as their clocks are above the sheet's [measured: V100]."""

_SLOW = (Precision.FLOAT32, Precision.FLOAT64)


class Basis(Enum):
    """Where a time comes from.  MEASURED: this device and precision.  SCALED: another device or precision, by the ratio of the data sheets."""

    MEASURED = "measured"
    SCALED = "scaled"


class KernelModel:
    """Seconds of kernels on one device, alone on it, without the host's launch.

    >>> model = KernelModel.for_device("H100 SXM")
    >>> 600 < 2 * 8192**3 / model.gemm_s(8192, 8192, 8192) / 1e12 < 850
    True
    """

    def __init__(self, device: DeviceSheet) -> None:
        self.device = device
        self._products: dict[tuple[int, int, int, Precision, int], float] = {}
        self._attentions: dict[tuple[object, ...], float] = {}

    @staticmethod
    def for_device(name: str) -> KernelModel:
        """The model of a device of the catalogue, by any of its names; one object per device.

        Raises:
            InvalidCluster: no device has that name.
        """
        return _model(device_sheet(name).name)

    def gemm_basis(self, dtype: DType | Precision = DType.BFLOAT16) -> Basis:
        """Where the times of products come from."""
        precision = _precision(dtype)
        own = self.device.like == self.device.name
        if precision in _SLOW:
            return Basis.MEASURED if precision is Precision.FLOAT32 and self.device.name in _float32_devices() else Basis.SCALED
        return Basis.MEASURED if own and precision is Precision.BFLOAT16 else Basis.SCALED

    def gemm_s(self, m: int, n: int, k: int, dtype: DType | Precision = DType.BFLOAT16, *, batch: int = 1) -> float:
        """Seconds of ``batch`` products of m x k by k x n, one kernel.

        Raises:
            Unsupported: a size below 1.   InvalidCluster: the device has no rate for the precision.
        """
        precision = _precision(dtype)
        key = (m, n, k, precision, batch)
        if key not in self._products:
            if min(m, n, k, batch) < 1:
                raise Unsupported(f"product of {m} x {k} by {k} x {n}, {batch} times: every size is at least 1")
            self._products[key] = self._product_s(batch, m, n, k, precision)
        return self._products[key]

    def grouped_gemm_s(self, groups: Sequence[tuple[int, int, int]], dtype: DType | Precision = DType.BFLOAT16) -> float:
        """Seconds of one kernel of several products (m, n, k), as experts have them; derived: equal ones with as many rows of tiles in all.

        Raises:
            Unsupported: no group, or groups that differ in n or k.
        """
        if not groups or len({group[1:] for group in groups}) > 1:
            raise Unsupported(f"a grouped product of {len(groups)} groups: at least one is needed, and all have the same n and k")
        (_, n, k), *_ = groups
        rows = [m for m, _, _ in groups if m]
        if not rows:
            return self.stream_s(0)
        tile = QUERY_ROWS if max(rows) > QUERY_ROWS else 16
        return self.gemm_s(ceil(sum(ceil(m / tile) * tile for m in rows) / len(rows)), n, k, dtype, batch=len(rows))

    def attention_s(
        self,
        batch: int,
        heads: int,
        seq: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        seq_kv: int | None = None,
        causal: bool = True,
        dtype: DType | Precision = DType.BFLOAT16,
        backward: bool = False,
    ) -> float:
        """Seconds of a fused attention.

        Args:
            heads, kv_heads: on this device; fewer key-value heads are grouped queries.   seq, seq_kv: queries, and keys (None: as many).
            backward: the backward pass instead; derived from the forward one.
        """
        key = (batch, heads, seq, head_dim, kv_heads or heads, seq_kv or seq, causal, _precision(dtype), backward)
        if key not in self._attentions:
            if min(batch, heads, seq, head_dim, kv_heads or heads, seq_kv or seq) < 1:
                raise Unsupported(f"attention of {batch} x {heads} heads x {seq} tokens x {head_dim}: every size is at least 1")
            forward_s = self._attention_s(batch, heads, kv_heads or heads, seq, seq_kv or seq, head_dim, causal, _precision(dtype))
            self._attentions[key] = forward_s * (BACKWARD_FLOP / BACKWARD_RATE if backward else 1.0)
        return self._attentions[key]

    def stream_s(self, size_bytes: float) -> float:
        """Seconds of a kernel that reads and writes ``size_bytes`` in all: normalisations, elementwise chains, softmax, embeddings, casts."""
        return stream_s(self._stream, size_bytes)

    @cached_property
    def _stream(self) -> Surface:
        return surface_of(self.device, self._constants("stream"), Precision.FLOAT32)

    def update_s(self, parameters: float, bytes_each: float = UPDATE_BYTES) -> float:
        """Seconds of a fused optimizer update of so many parameters on this device."""
        return self.stream_s(parameters * bytes_each)

    def precision_of(self, work: KernelWork) -> Precision:
        """In which precision the device computes a kernel: float32 for a dtype that it has no rate for (bfloat16 on a V100); tf32 in convolutions."""
        precision = Precision.FLOAT32 if work.dtype is None else Precision.of(work.dtype)
        if work.kind is KernelKind.CONVOLUTION and precision is Precision.FLOAT32 and Precision.TF32 in self.device.peaks:
            return Precision.TF32
        return precision if precision in self.device.peaks else Precision.FLOAT32

    def least_s(self, work: KernelWork) -> float:
        """Seconds of one kernel's flop at the whole peak of the precision in which they are computed."""
        return work.flop / self.device.peak_flop_per_s(self.precision_of(work))

    def least_part_s(self, work: KernelWork) -> float:
        """Seconds that a product, an attention or a convolution takes at least: of its parts none takes less than its share of them.

        A convolution may need fewer flop (Winograd).
        """
        least_s = self.least_s(work) / _ABOVE_PEAK
        if work.kind is not KernelKind.CONVOLUTION:
            return least_s
        rates = convolution_rates(self.device.name)
        return least_s / max(1.0, rates.share(self.precision_of(work)) * rates.winograd)

    def work_s(self, work: KernelWork) -> float:
        """Seconds of one kernel of a fragment."""
        precision = self.precision_of(work)
        match work.kind:
            case KernelKind.PRODUCT:
                batch, m, n, k = work.shape
                return self.gemm_s(m, n, k, precision, batch=batch)
            case KernelKind.CONVOLUTION:
                return max(self._convolution_s(work, precision), self.stream_s(work.size_bytes))
            case KernelKind.ATTENTION | KernelKind.ATTENTION_BACKWARD:
                return self._attention_work_s(work, precision)
            case KernelKind.PASS:
                return max(self.stream_s(work.size_bytes), work.flop / (OTHER_SHARE * self.device.peak_flop_per_s(precision)))

    def _convolution_s(self, work: KernelWork, precision: Precision) -> float:
        """cuDNN computes float32 convolutions in TF32 unless it is told not to, which PyTorch does not (precision_of)."""
        batch, m, n, k, slides_by_one = work.shape
        rates = convolution_rates(self.device.name)
        gain = rates.winograd if slides_by_one and precision is Precision.FLOAT32 else 1.0
        return self.gemm_s(m, n, k, precision, batch=batch) / (rates.share(precision) * gain)

    def _attention_work_s(self, work: KernelWork, precision: Precision) -> float:
        """A part of the rows of causal attention is no square: it takes the share of an attention without a mask that its scores are."""
        samples, heads, kv_heads, queries, keys, width, causal = work.shape
        backward = work.kind is KernelKind.ATTENTION_BACKWARD
        square = bool(causal) and queries == keys
        whole_s = self.attention_s(
            samples, heads, queries, width, kv_heads=kv_heads, seq_kv=keys, causal=square, dtype=precision, backward=backward
        )
        if square or not causal:
            return whole_s
        whole_flop = samples * heads * queries * keys * (10 * width if backward else 4 * width)
        return whole_s * min(1.0, work.flop / whole_flop)

    def _constants(self, what: str) -> dict[str, float]:
        """The device's own constants, those of the device that it is like, or those of all."""
        fitted = constants()
        for name in (self.device.name, self.device.float32_like if what == "float32" else self.device.like, GENERIC):
            if what in fitted.get(name, {}):
                return self._powered(dict(fitted[name][what]))
        raise AssertionError(f"constants.toml has no generic {what}")

    def _powered(self, fitted: dict[str, float]) -> dict[str, float]:
        """Constants with a share of the peak by the device's watts per TFLOP/s, where nothing better is known: min(most, c (watt / peak)^a)."""
        if "share_c" not in fitted:
            return fitted
        watts = self.device.watt / (self.device.peak_flop_per_s(Precision.FLOAT32) / 1e12)
        return fitted | {"share": min(fitted["share_most"], fitted["share_c"] * watts ** fitted["share_a"])}

    def _product_s(self, batch: int, m: int, n: int, k: int, precision: Precision) -> float:
        shape = [np.array([float(size)]) for size in (batch, m, n, k)]
        if precision in _SLOW:
            surface = surface_of(self.device, self._constants("float32"), precision)
            points = scattered_products(self.device.float32_like)
            log_ratio = 0.0 if points is None else points.at(np.log2(np.array([batch, m, n, k], dtype=np.float64)) * PRODUCT_SCALE)
        else:
            surface = surface_of(self.device, self._constants("bfloat16"), precision)
            log_ratio = product_ratios(self.device.like).at(batch * m, n, k)
        return float(product_s(surface, shape, precision.size_bytes)[0] * np.exp(log_ratio))

    def _attention_s(
        self, batch: int, heads: int, kv_heads: int, seq: int, seq_kv: int, head_dim: int, causal: bool, precision: Precision
    ) -> float:
        like = device_sheet(self.device.attention_like)
        fitted = constants()[like.name]
        dims = sorted(int(name.partition("-")[2]) for name in fitted if name.startswith("attention-"))
        nearest = min(dims, key=lambda dim: (abs(np.log2(dim / head_dim)), -dim))
        surface = surface_of(self.device, fitted[f"attention-{nearest}"], precision)
        shape = [np.array([float(size)]) for size in (batch, heads, kv_heads, seq, seq_kv, head_dim)]
        log_ratio = attention_ratios(like.name, nearest).at(attention_features(seq_kv, batch, heads, kv_heads))
        return float(attention_s(surface, shape, causal, precision.size_bytes)[0] * np.exp(log_ratio))


@lru_cache(maxsize=64)
def _model(name: str) -> KernelModel:
    return KernelModel(device_sheet(name))


@lru_cache(maxsize=1)
def _float32_devices() -> frozenset[str]:
    return frozenset(name for name, fitted in constants().items() if name != GENERIC and "float32" in fitted)


def _precision(dtype: DType | Precision) -> Precision:
    return dtype if isinstance(dtype, Precision) else Precision.of(dtype)
