"""Data sheets of devices: peaks by precision, memory, units, and which measured table and which constants a device has (devices.toml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from planner.ir.errors import InvalidCluster
from planner.ir.tensor import DType

__all__ = ["DeviceSheet", "Precision", "device_names", "device_sheet"]


class Precision(Enum):
    """What the operands of a matrix product are, as far as its speed goes.  TF32: float32 operands on matrix units; FLOAT8: either format."""

    __hash__ = object.__hash__  # asked for millions of times; the inherited one hashes the name

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8 = "float8"

    @property
    def size_bytes(self) -> int:
        return {Precision.FLOAT64: 8, Precision.FLOAT32: 4, Precision.TF32: 4, Precision.FLOAT8: 1}.get(self, 2)

    @staticmethod
    def of(dtype: DType) -> Precision:
        """The precision of a tensor's dtype; integers and complex numbers are computed like float32, which is the nearest that was measured."""
        return Precision(dtype.value) if dtype.is_floating else Precision.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """The data sheet of a device: dense peaks, nothing sustained.

    units: streaming multiprocessors, compute units or cores, over which a kernel's tiles are dealt out.   peaks: flop/s by precision.
    like: the device whose measured products and attention stand for this one's where it has no table of its own; itself where it has.
    float32_like: the same for its float32 products, whose table is another.   attention_like: for attention.
    watt: what the board may take; small boards are slowed by it long before their peak.
    """

    name: str
    also: tuple[str, ...]
    units: int
    peaks: Mapping[Precision, float]
    bandwidth_bytes_per_s: float
    cache_bytes: float
    watt: float
    like: str
    float32_like: str
    attention_like: str
    source: str

    def peak_flop_per_s(self, precision: Precision) -> float:
        """Raises InvalidCluster: the device has no rate for the precision."""
        peak = self.peaks.get(precision)
        if peak is None:
            has = ", ".join(p.value for p in self.peaks)
            raise InvalidCluster(f"device {self.name} has no rate for {precision.value}; it has {has}; take one of these or another device")
        return peak


def device_names() -> tuple[str, ...]:
    """The names of the devices that have a data sheet here."""
    return tuple(_sheets())


@lru_cache(maxsize=256)
def device_sheet(text: str) -> DeviceSheet:
    """The device of a name, in any of its spellings: ``H100 SXM``, ``h100-sxm``, ``NVIDIA H100 80GB HBM3``.

    Raises:
        InvalidCluster: no device has that name; the message lists them.
    """
    wanted = _plain(text)
    for sheet in _sheets().values():
        if wanted in {_plain(sheet.name), *map(_plain, sheet.also)}:
            return sheet
    raise InvalidCluster(f"device {text!r} has no kernel data; devices are {', '.join(_sheets())}")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("nvidia").removeprefix("tesla"))


@lru_cache(maxsize=1)
def _sheets() -> Mapping[str, DeviceSheet]:
    data = tomllib.loads(resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8"))
    return MappingProxyType({name: _sheet(name, entry) for name, entry in data.items()})


def _sheet(name: str, entry: Mapping[str, object]) -> DeviceSheet:
    def number(key: str) -> float:
        value = entry[key]
        assert isinstance(value, int | float), f"{name}.{key}"
        return float(value)

    also, peaks = entry.get("also", []), entry["peak_TFLOPs"]
    assert isinstance(also, list) and isinstance(peaks, dict)
    return DeviceSheet(
        name=name,
        also=tuple(also),
        units=int(number("units")),
        peaks=MappingProxyType({Precision(key): value * 1e12 for key, value in peaks.items()}),
        bandwidth_bytes_per_s=number("memory_GBps") * 1e9,
        cache_bytes=number("cache_MB") * 1e6,
        watt=number("watt"),
        like=str(entry.get("like", name)),
        float32_like=str(entry.get("float32_like", name)),
        attention_like=str(entry.get("attention_like", entry.get("like", name))),
        source=str(entry["source"]),
    )
