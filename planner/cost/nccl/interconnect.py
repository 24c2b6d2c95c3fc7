"""The constants of an interconnect, as a file says them: interconnects/NAME.toml, each with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import resources
from math import log2

from planner.ir.errors import InvalidFile, Unsupported

__all__ = ["Interconnect", "Protocol", "ProtocolTimes", "Switch", "interconnect_names", "load_interconnect", "parse_interconnect"]

_FOLDER = "interconnects"


class Protocol(Enum):
    """How NCCL's kernels hand data over: flags beside every 4 bytes, beside every 120, or one per chunk."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolTimes:
    """base_us: a collective without steps.   hop_us, net_hop_us: one step within a node, between nodes.

    tree_hop_us, tree_net_hop_us: the same for a tree.   share, net_share: of the bandwidth that the protocol reaches, within and between nodes.
    fill_us, fill_MB: time to fill the pipeline of chunks, reached by half at fill_MB.   net_fill_us, net_fill_MB: of a level between nodes.
    """

    base_us: float
    hop_us: float
    net_hop_us: float
    tree_hop_us: float
    tree_net_hop_us: float
    share: float
    net_share: float
    fill_us: float = 0.0
    fill_MB: float = 1.0
    net_fill_us: float = 0.0
    net_fill_MB: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Reduction in the switch (NVLS): base_us, bandwidth in units of S, pipeline fill; fewest_ranks: below it NCCL takes a ring.

    across_share: of the bandwidth that is left when nodes are joined (NVLS tree).
    """

    base_us: float
    GBps: float
    fill_us: float
    fill_MB: float
    fewest_ranks: int
    across_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """port_GBps: group size -> what a rank sends around a ring.   exchange_GBps: the same, to all its peers.

    post_us, exchange_base_us: of an exchange (all-to-all, send-receive), per peer and in all.
    net_GBps: of one rank's network port.
    sharp: the network's switches reduce (CollNet).   domain: ranks that one NVLink switch joins, where they are more than a node's (else 0).
    """

    name: str
    source: str
    protocols: Mapping[Protocol, ProtocolTimes]
    port_GBps: Mapping[int, float]
    exchange_GBps: Mapping[int, float]
    exchange_base_us: float
    post_us: float
    exchange_fill_us: float
    exchange_fill_MB: float
    switch: Switch | None
    net_GBps: float
    net_post_us: float
    sharp: bool = False
    domain: int = 0


def between_sizes(by_ranks: Mapping[int, float], ranks: int) -> float:
    """The value at a group size: linear in its logarithm between those that are given, constant beyond them.

    >>> between_sizes({2: 100.0, 8: 200.0}, 4)
    150.0
    """
    sizes = sorted(by_ranks)
    if ranks <= sizes[0]:
        return by_ranks[sizes[0]]
    if ranks >= sizes[-1]:
        return by_ranks[sizes[-1]]
    above = next(size for size in sizes if size >= ranks)
    below = max(size for size in sizes if size < above)
    way = log2(ranks / below) / log2(above / below)
    return by_ranks[below] * (1 - way) + by_ranks[above] * way


def interconnect_names() -> tuple[str, ...]:
    """The names of the files, sorted."""
    files = resources.files(__package__).joinpath(_FOLDER).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@lru_cache(maxsize=64)
def load_interconnect(name: str) -> Interconnect:
    """The constants of a named interconnect.

    Raises:
        Unsupported: no file has that name; the message lists them.   InvalidFile: a file without a key.
    """
    if name not in interconnect_names():
        raise Unsupported(f"interconnect {name!r}: no constants for it; there are {', '.join(interconnect_names())}")
    text = resources.files(__package__).joinpath(_FOLDER, f"{name}.toml").read_text(encoding="utf-8")
    return parse_interconnect(tomllib.loads(text), name)


def parse_interconnect(data: Mapping[str, object], name: str) -> Interconnect:
    """An interconnect from the data of its TOML.

    Raises:
        InvalidFile: a key is missing, unknown or no number.
    """
    try:
        return _parsed(data, name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFile(f"interconnect {name}: {error!r}; keys are those of interconnects/h100-nvswitch.toml") from None


def _parsed(data: Mapping[str, object], name: str) -> Interconnect:
    def numbers(table: object) -> dict[str, float]:
        assert isinstance(table, dict)
        return {str(key): float(value) for key, value in table.items()}

    def by_ranks(table: object) -> dict[int, float]:
        return {int(key): value for key, value in numbers(table).items()}

    protocols, exchange, net = data["protocols"], dict(data["exchange"]), numbers(data["net"])  # type: ignore[call-overload]
    exchange_GBps = by_ranks(exchange.pop("GBps"))
    own = numbers(exchange)
    switch = numbers(data["switch"]) if "switch" in data else None
    assert isinstance(protocols, dict)
    return Interconnect(
        name=name,
        source=str(data["source"]),
        protocols={protocol: ProtocolTimes(**numbers(protocols[protocol.value])) for protocol in Protocol if protocol.value in protocols},
        port_GBps=by_ranks(data["port_GBps"]),
        exchange_GBps=exchange_GBps,
        exchange_base_us=own["base_us"],
        post_us=own["post_us"],
        exchange_fill_us=own["fill_us"],
        exchange_fill_MB=own["fill_MB"],
        switch=None if switch is None else Switch(**(switch | {"fewest_ranks": int(switch["fewest_ranks"])})),  # type: ignore[arg-type]
        net_GBps=net["GBps"],
        net_post_us=net["post_us"],
        sharp=bool(data.get("sharp", False)),
        domain=int(str(data.get("domain", 0))),
    )
