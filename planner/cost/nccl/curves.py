"""Measured curves: seconds of a collective within one node at a few sizes, per interconnect, kind, group and whether the switch can add.

(1) between two sizes   log (T / law) is linear in log S: the law knows where a protocol ends
(2) beyond them         T / law stays what it is at the end
(3) a group size that was not measured: the law, times what the nearest smaller and larger measured groups are off from it at that size
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from math import exp, log

from planner.cost.nccl.groups import Kind
from planner.ir.units import US

__all__ = ["Curve", "Curves", "curves_of", "read_curves"]

FILE = "curves.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """sizes_bytes: ascending, at least two; times_s: as many."""

    sizes_bytes: tuple[float, ...]
    times_s: tuple[float, ...]

    def time_s(self, size_bytes: float, law: Callable[[float], float]) -> float:
        """Equations (1) and (2)."""
        inside = min(max(size_bytes, self.sizes_bytes[0]), self.sizes_bytes[-1])
        above = min(bisect_right(self.sizes_bytes, inside), len(self.sizes_bytes) - 1)
        low, high = self.sizes_bytes[above - 1], self.sizes_bytes[above]
        way = log(inside / low) / log(high / low)
        below_off, above_off = log(self.times_s[above - 1] / law(low)), log(self.times_s[above] / law(high))
        return law(size_bytes) * exp((1 - way) * below_off + way * above_off)


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one interconnect: (kind, in switch) -> ranks -> curve."""

    by_kind: Mapping[tuple[Kind, bool], Mapping[int, Curve]]

    def time_s(self, kind: Kind, size_bytes: float, ranks: int, in_switch: bool, law: Callable[[float, int], float]) -> float | None:
        """Equations (1) to (3); None where nothing of that kind was measured.

        Args:
            law: (bytes, ranks) -> seconds.
        """
        measured = self.by_kind.get((kind, in_switch)) or self.by_kind.get((kind, True))
        if not measured:
            return None

        def ratio(size: int) -> float:
            return measured[size].time_s(size_bytes, lambda n: law(n, size)) / law(size_bytes, size)

        below = max((size for size in measured if size <= ranks), default=min(measured))
        above = min((size for size in measured if size >= ranks), default=max(measured))
        if below == above:
            return law(size_bytes, ranks) * ratio(below)
        way = log(ranks / below) / log(above / below)
        return law(size_bytes, ranks) * exp((1 - way) * log(ratio(below)) + way * log(ratio(above)))


def read_curves(text: str) -> dict[str, Curves]:
    """Interconnect -> its curves, from CSV text: interconnect, kind, in_switch, ranks, then bytes:us pairs."""
    read: dict[str, dict[tuple[Kind, bool], dict[int, Curve]]] = {}
    for row in csv.DictReader(text.splitlines()):
        points = [tuple(map(float, point.split(":"))) for point in row["bytes_us"].split()]
        curve = Curve(sizes_bytes=tuple(n for n, _ in points), times_s=tuple(US * us for _, us in points))
        of_kind = read.setdefault(row["interconnect"], {}).setdefault((Kind(row["kind"]), row["in_switch"] == "1"), {})
        of_kind[int(row["ranks"])] = curve
    return {name: Curves(by_kind) for name, by_kind in read.items()}


@lru_cache(maxsize=1)
def _all_curves() -> Mapping[str, Curves]:
    return read_curves(resources.files(__package__).joinpath("interconnects", FILE).read_text(encoding="utf-8"))


def curves_of(name: str) -> Curves:
    """The curves of a named interconnect; none where it was not measured."""
    return _all_curves().get(name, Curves({}))
