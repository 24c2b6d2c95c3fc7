"""A kernel table: what each kernel of some programs took on one device, measured by ``regista calibrate --device``, and prices from it.

(1) known kernel     t = median over the ops that launch it                             equal kind, dtype, shape, flop and bytes -> KernelTable.work_s
(2) another kernel   t = s exp(r)        r: log(measured / s) interpolated between the kernels of the kind, in doublings of their sizes
(3) surface          s = (floor^4 + (flop / rate)^4 + (bytes / beta)^4)^(1/4)       floor, rate, beta: the best that was measured

A file of kind "kernels"; its times are seconds of a kernel alone on the device, without the host's launch, as in tables.npz of this room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import numpy as np

from planner.cost.kernels.surface import Floats
from planner.cost.kernels.tables import Scattered
from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.graph import KernelKind, KernelWork
from planner.ir.tensor import DType
from planner.ir.text import canonical, content_id, decode, encode, load_json, save_text

__all__ = ["CopyTime", "KernelTable", "KernelTime", "load_kernels", "save_kernels"]

VERSION = 1
KIND = "kernels"
MOST_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """target: the op that launched it.   work: of one kernel.   seconds, low_s, high_s: median and quartiles over ``rounds``."""

    target: str
    work: KernelWork
    seconds: float
    low_s: float
    high_s: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTime:
    """Of bytes between pinned memory of the host and the device, one way."""

    to_device: bool
    size_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """See the module's text.

    launch_s: what the host takes to put one small kernel into a lane.   about: device, clocks, driver, versions, date.
    """

    device: str
    launch_s: float
    times: tuple[KernelTime, ...]
    copies: tuple[CopyTime, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"kernels-{content_id(self)}"

    def work_s(self, work: KernelWork) -> float:
        """Seconds of one kernel; equations (1) to (3).

        Raises:
            Mismatch: no kernel of its kind and dtype was measured.
        """
        one = replace(work, times=1)
        known = self._known.get(one)
        if known is not None:
            return known
        surface = self._surface(work)
        return surface.at(one) * float(np.exp(surface.points.at(_features(one))))

    def rate_flop_per_s(self, dtype: DType) -> float:
        """The best rate of products and convolutions in a dtype; 0: none was measured."""
        rates = [t.work.flop / t.seconds for t in self.times if t.work.dtype is dtype and t.work.kind is not KernelKind.PASS]
        return max(rates, default=0.0)

    @cached_property
    def bandwidth_bytes_per_s(self) -> float:
        """The best that a kernel which reads and writes has reached, or, where none was measured, any kernel."""
        passes = [time for time in self.times if time.work.kind is KernelKind.PASS]
        return max((time.work.size_bytes / time.seconds for time in passes or self.times), default=0.0)

    def copy_s(self, size_bytes: int, *, to_device: bool) -> float:
        """Seconds of a copy, between the sizes that were measured by a line, beyond them in proportion.   Raises Mismatch: none was measured."""
        points = sorted((c.size_bytes, c.seconds) for c in self.copies if c.to_device is to_device)
        if not points:
            raise Mismatch(f"the kernel table of {self.device} has no copies; measure them with 'regista calibrate --device {self.device}'")
        sizes, seconds = zip(*points, strict=True)
        if size_bytes > sizes[-1]:
            return float(seconds[-1] * size_bytes / sizes[-1])
        return float(np.interp(size_bytes, sizes, seconds))

    @cached_property
    def _known(self) -> Mapping[KernelWork, float]:
        grouped: dict[KernelWork, list[float]] = defaultdict(list)
        for time in self.times:
            grouped[time.work].append(time.seconds)
        return {work: median(seconds) for work, seconds in grouped.items()}

    @cached_property
    def _surfaces(self) -> dict[tuple[KernelKind, DType | None], _MeasuredSurface]:
        return {}

    def _surface(self, work: KernelWork) -> _MeasuredSurface:
        """Of its kind and dtype; what only reads and writes is alike in all dtypes."""
        key = work.kind, None if work.kind is KernelKind.PASS else work.dtype
        if key not in self._surfaces:
            alike = [(w, s) for w, s in self._known.items() if w.kind is key[0] and (key[1] is None or w.dtype is key[1])]
            if not alike:
                dtype = "integers" if work.dtype is None else work.dtype.value
                raise Mismatch(
                    f"the kernel table of {self.device} has no {work.kind.value} in {dtype}; measure one with "
                    f"'regista calibrate --device {self.device} -o FILE' and a program that has it"
                )
            self._surfaces[key] = _MeasuredSurface.of(alike, self.bandwidth_bytes_per_s)
        return self._surfaces[key]


@dataclass(frozen=True, slots=True)
class _MeasuredSurface:
    """Equation (3) and the points of equation (2)."""

    floor_s: float
    rate_flop_per_s: float
    bandwidth_bytes_per_s: float
    points: Scattered

    @classmethod
    def of(cls, alike: list[tuple[KernelWork, float]], bandwidth_bytes_per_s: float) -> _MeasuredSurface:
        rate = max((work.flop / seconds for work, seconds in alike), default=0.0)
        beta = max(bandwidth_bytes_per_s, max(work.size_bytes / seconds for work, seconds in alike))
        bare = cls(min(seconds for _, seconds in alike), rate, beta, Scattered(np.zeros((1, 1)), np.zeros(1)))
        ratios = np.array([np.log(seconds / bare.at(work)) for work, seconds in alike])
        return cls(bare.floor_s, rate, beta, Scattered(np.stack([_features(work) for work, _ in alike]), ratios))

    def at(self, work: KernelWork) -> float:
        compute_s = work.flop / self.rate_flop_per_s if self.rate_flop_per_s else 0.0
        memory_s = work.size_bytes / self.bandwidth_bytes_per_s if self.bandwidth_bytes_per_s else 0.0
        return float((self.floor_s**4 + compute_s**4 + memory_s**4) ** 0.25)


def _features(work: KernelWork) -> Floats:
    """Sizes in doublings: of a pass its bytes and flop per byte, of anything else its shape."""
    sizes = (work.size_bytes + 1, 1 + work.flop / max(work.size_bytes, 1)) if work.kind is KernelKind.PASS else work.shape
    return np.asarray(np.log2(np.maximum(np.array(sizes, dtype=np.float64), 1.0)))


def save_kernels(table: KernelTable, path: str) -> None:
    save_text(path, canonical({"kind": KIND, "version": VERSION, KIND: encode(table)}) + "\n")


def load_kernels(path: str) -> KernelTable:
    """Raises InvalidFile: the file is missing, damaged, of another kind, or has times that nobody measured."""
    table = decode(KernelTable, load_json(path, KIND, VERSION).get(KIND), KIND)
    assert isinstance(table, KernelTable)
    times_s = [table.launch_s, *(time.seconds for time in table.times), *(copy.seconds for copy in table.copies)]
    if not all(0 < time_s <= MOST_S for time_s in times_s):
        raise InvalidFile(f"{path}: a kernel, a copy or a launch of {min(times_s):g} to {max(times_s):g} s; measured times are above 0")
    return table
