"""The constants of a cluster that prices are made of, how uncertain each is, and the cluster at the bad end of all of them.

spread    a share by which a constant may be off, to either side: what was asked for; else its own, known from left-out points (spreads.csv, by
          python -m experiments.trust); else the default
bad end   rates, bandwidths and memory divided by 1 + spread, latencies and times multiplied by it.  A price falls with no rate and grows with no
          latency that gets worse, so of all clusters within the spreads this one has the highest price of every plan
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from planner.ir.cluster import Cluster, cluster_toml, parse_cluster
from planner.ir.errors import Unsupported

__all__ = ["DEFAULT", "Constant", "constants_of", "parse_spreads", "pessimistic", "search_cluster", "spreads_text", "with_constants"]

FILE = Path(__file__).parent / "spreads.csv"
DEFAULT = 0.1
"""Assumed of a constant whose uncertainty nobody has measured."""
LARGEST = 9.0
TIMES = ("product_times", "attention_times", "pass_times")
_UNITS = {"GB": "GB", "GFLOPs": "GFLOP/s", "GBps": "GB/s", "us": "us", "times": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """key: its path in the cluster's TOML.   value: in ``unit``.   origin: where ``spread``, a share, is from."""

    key: str
    unit: str
    value: float
    spread: float
    origin: str

    @property
    def more_is_worse(self) -> bool:
        """Whether it is a time, and no rate or size."""
        return self.unit in ("us", "1")

    @property
    def ends(self) -> tuple[float, float]:
        """(low, high): value over and times 1 + spread."""
        return self.value / (1 + self.spread), self.value * (1 + self.spread)

    @property
    def bad_end(self) -> float:
        return self.ends[1] if self.more_is_worse else self.ends[0]


def constants_of(cluster: Cluster, spreads: Mapping[str, float] | None = None) -> tuple[Constant, ...]:
    """All numbers of the cluster's file that its prices, or its memory limit, are made of; those of value 0 have no ends and are left out.

    Args:
        spreads: key -> share, ``""`` -> the default.

    Raises:
        Unsupported: a key that the cluster has not, with those that it has; a cluster of several kinds of node.
    """
    if cluster.parts:
        kinds = ", ".join(part.name for part in cluster.parts)
        raise Unsupported(f"spreads of constants on {cluster.name}: it has several kinds of node ({kinds}); give a cluster of one kind")
    asked = dict(spreads or {})
    default = asked.pop("", None)
    values = {key: value for key, value in _numbers("", tomllib.loads(cluster_toml(cluster))) if _counts(cluster, key)}
    if cluster.device.kernels:
        values |= {f"device.{name}": getattr(cluster.device, name) for name in TIMES}
    if cluster.interconnect is not None:
        values["links.collective_times"] = cluster.collective_times
    if unknown := sorted(set(asked) - set(values)):
        raise Unsupported(
            f"spread of {unknown[0]!r}: cluster {cluster.name} has no such constant; its constants are {', '.join(sorted(values))}"
        )
    made = []
    for key, value in values.items():
        if value == 0:
            continue
        spread, origin = asked.get(key), "asked for"
        if spread is None:
            known = _known(cluster, key)
            spread, origin = known if known is not None and default is None else (DEFAULT if default is None else default, "assumed")
        made.append(Constant(key=key, unit=_UNITS[key.rpartition("_")[2]], value=value, spread=spread, origin=origin))
    return tuple(made)


def _numbers(prefix: str, data: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}.", value)
        elif isinstance(value, float) and name.rpartition("_")[2] in _UNITS:
            yield f"{prefix}{name}", value


def _counts(cluster: Cluster, key: str) -> bool:
    """Kernels of a table do not take the rates of the cluster's file."""
    return not (cluster.device.kernels and (key.endswith("_GFLOPs") or key == "device.memory_bandwidth_GBps"))


@cache
def _table() -> Mapping[tuple[str, str], tuple[float, str]]:
    if not FILE.is_file():
        return {}
    with FILE.open(newline="", encoding="utf-8") as file:
        return {(row["key"], row["name"]): (float(row["spread"]), row["origin"]) for row in csv.DictReader(file)}


def _known(cluster: Cluster, key: str) -> tuple[float, str] | None:
    """(spread, origin) by the device's kernel table or the interconnect; of one that was never measured, that of a device left out."""
    name = cluster.interconnect if key.startswith("links.") else cluster.device.kernels
    return _table().get((key, name or ""), _table().get((key, "")))


def with_constants(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """The cluster with some constants set anew, in their units.   Raises InvalidCluster: a value that no machine can have."""
    data = tomllib.loads(cluster_toml(cluster))
    for key, value in values.items():
        *path, name = key.split(".")
        section = data
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return parse_cluster(data, f"cluster {cluster.name} with other constants", cluster.name)


def pessimistic(cluster: Cluster, constants: Sequence[Constant]) -> Cluster:
    """The cluster with every constant at its bad end."""
    bad = with_constants(cluster, {constant.key: constant.bad_end for constant in constants})
    return replace(bad, source=f"{cluster.source}; constants at their bad ends")


def parse_spreads(texts: Sequence[str]) -> dict[str, float]:
    """KEY=SHARE, or SHARE alone (the default of all); shares as 0.2 or 20%.

    Raises:
        Unsupported: not of that form, or a share that is not above 0 and at most LARGEST.

    >>> parse_spreads(["20%", "links.nic.bandwidth_GBps=0.5"])
    {'': 0.2, 'links.nic.bandwidth_GBps': 0.5}
    """
    spreads = {}
    for text in texts:
        key, _, number = text.rpartition("=")
        try:
            share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError:
            raise Unsupported(f"spread {text!r}: write KEY=SHARE, for example links.nic.bandwidth_GBps=20%, or a share for all") from None
        if not 0 < share <= LARGEST:
            raise Unsupported(f"spread {text!r}: a share above 0 and at most {LARGEST:g} is needed; a constant that is certain is left out")
        spreads[key.strip()] = share
    return spreads


def spreads_text(constants: Sequence[Constant]) -> str:
    """For a Plan's record."""
    return ";".join(f"{constant.key}={constant.spread:g}" for constant in constants)


def search_cluster(cluster: Cluster, recorded: str) -> Cluster:
    """The cluster whose prices a search saw.   recorded: spreads_text of a robust plan; empty: the cluster itself."""
    if not recorded:
        return cluster
    spreads = parse_spreads(recorded.split(";"))
    return pessimistic(cluster, [c for c in constants_of(cluster, spreads) if c.key in spreads])
