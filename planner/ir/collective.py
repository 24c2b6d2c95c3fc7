"""Collectives by name, and the bytes each device sends (SEMANTICS 2; T = bytes that the axis' devices hold together, p devices)."""

from __future__ import annotations

from enum import Enum

from planner.ir.errors import Unsupported
from planner.ir.sbp import Broadcast, Partial, Sbp, Split

__all__ = ["Collective", "collective_for", "sent_bytes"]


class Collective(Enum):
    __hash__ = object.__hash__  # asked for millions of times; the inherited one hashes the name

    LOCAL = "local"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SHIFT = "shift"


def collective_for(src: Sbp, dst: Sbp) -> Collective:
    """The collective that turns ``src`` into ``dst`` on one mesh axis.

    Raises:
        Unsupported: from P(op) to another P(op'): reduce to B or S first; from or to a turned split of another dim.
    """
    if src == dst:
        return Collective.LOCAL
    turned = any(isinstance(entry, Split) and entry.turn for entry in (src, dst))
    if turned and not (isinstance(src, Split) and isinstance(dst, Split) and src.dim == dst.dim):
        raise Unsupported(f"boxing {src} -> {dst}: parts that lie turned around the axis are only shifted along it")
    match src, dst:
        case Broadcast(), _:
            return Collective.LOCAL
        case Split(dim), Split(other) if dim == other:
            return Collective.SHIFT
        case Split(), Split():
            return Collective.ALL_TO_ALL
        case Split(), Broadcast():
            return Collective.ALL_GATHER
        case Split(), Partial():
            return Collective.LOCAL
        case Partial(), Split():
            return Collective.REDUCE_SCATTER
        case Partial(), Broadcast():
            return Collective.ALL_REDUCE
        case _:
            raise Unsupported(f"boxing {src} -> {dst}: two different partial reductions cannot be exchanged; go through B")


def sent_bytes(collective: Collective, total_bytes: float, parts: int) -> float:
    """Bytes that each device sends, table of SEMANTICS 2.

    >>> sent_bytes(Collective.ALL_REDUCE, 8.0, 2)
    8.0
    """
    share = (parts - 1) / parts
    match collective:
        case Collective.LOCAL:
            return 0.0
        case Collective.ALL_REDUCE:
            return 2 * share * total_bytes
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER:
            return share * total_bytes
        case Collective.ALL_TO_ALL:
            return share / parts * total_bytes
        case Collective.SHIFT:
            return total_bytes / parts if parts > 1 else 0.0
