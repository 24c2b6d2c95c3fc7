"""How fast flows are that share links: max-min fairness by progressive filling.

    raise all rates together until links are full; freeze the flows on them; go on with the others

(1) level of a link = (bandwidth - what frozen flows take) / (weights of the flows on it that still rise)                  -> filled_rates()
(2) the flows on the links of the lowest level freeze at it
(3) a rate vector is max-min fair iff every flow passes a full link on which no flow is faster: its bottleneck

A flow's weight on a link is what one unit of its rate takes of the link's bandwidth: 1 for bytes that pass the link once.  Sums are exact, rounded
once, and links of one level freeze together, so neither the order of flows and links nor their numbering enters a rate: flows that stand alike
get rates that are equal to the bit, and one of them can stand for all (simulator.compiled).

Source: Bertsekas & Gallager 1992, "Data Networks", 2nd edition, section 6.5.2 (algorithm, and (3) as its proof of correctness).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from math import fsum
from typing import TypeVar

__all__ = ["filled_rates", "max_min_rates"]

K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Hashable)


def max_min_rates(uses: Mapping[K, Mapping[str, float]], bandwidth: Mapping[str, float]) -> dict[K, float]:
    """The max-min fair rate of every flow; a flow without links has an infinite rate.

    Args:
        uses: flow -> link -> weight > 0.
        bandwidth: of every link, in units of rate x weight (bytes/s for bytes and weight 1).

    >>> one = 1.0
    >>> rates = max_min_rates({"a": {"x": one}, "b": {"x": one, "y": one}, "c": {"y": one}}, {"x": 1.0, "y": 3.0})
    >>> rates["a"], rates["b"], rates["c"]
    (0.5, 0.5, 2.5)
    """
    users: dict[str, list[tuple[K, float]]] = {}
    for flow, weights in uses.items():
        for name, weight in weights.items():
            users.setdefault(name, []).append((flow, weight))
    rates = filled_rates(users, bandwidth)
    return {flow: rates.get(flow, float("inf")) for flow in uses}


def filled_rates(users: Mapping[L, Sequence[tuple[K, float]]], bandwidth: Mapping[L, float]) -> dict[K, float]:
    """(1), (2): the max-min fair rate of every flow that is on a link.

    Args:
        users: link -> (flow, weight > 0); a flow may stand there several times, for others that are as fast as it.
        bandwidth: as of max_min_rates.

    A link's level never falls while others freeze, so a heap of levels that are looked at again when popped finds the lowest.
    """
    rates: dict[K, float] = {}

    def level(link: L, before: float) -> float | None:
        """(1), not below what it was before; None where all flows are frozen."""
        rising = [weight for flow, weight in users[link] if flow not in rates]
        if not rising:
            return None
        left = bandwidth[link] - fsum(weight * rates[flow] for flow, weight in users[link] if flow in rates)
        return max(left / fsum(rising), before)

    heap = [(level(link, 0.0) or 0.0, place, link) for place, link in enumerate(users) if users[link]]
    heapq.heapify(heap)
    while heap:
        lowest, tied = heap[0][0], []
        while heap and heap[0][0] == lowest:
            before, place, link = heapq.heappop(heap)
            now = level(link, before)
            if now is None:
                continue
            if now > lowest:  # others have frozen since: look again when it is this link's turn
                heapq.heappush(heap, (now, place, link))
            else:
                tied.append(link)
        rates |= {flow: lowest for link in tied for flow, _ in users[link] if flow not in rates}
    return rates
