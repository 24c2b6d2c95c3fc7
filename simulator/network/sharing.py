"""How fast flows are that share links: max-min fairness by progressive filling.

    raise all rates together until a link is full; freeze the flows on it; go on with the others

(1) rate of the next flows to freeze = min over links of (bandwidth left) / (weights of the flows on it that still rise)  -> max_min_rates()
(2) a rate vector is max-min fair iff every flow passes a full link on which no flow is faster: its bottleneck

A flow's weight on a link is what one unit of its rate takes of the link's bandwidth: 1 for bytes that pass the link once.

Source: Bertsekas & Gallager 1992, "Data Networks", 2nd edition, section 6.5.2 (algorithm, and (2) as its proof of correctness).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from typing import TypeVar

__all__ = ["max_min_rates"]

K = TypeVar("K", bound=Hashable)


def max_min_rates(uses: Mapping[K, Mapping[str, float]], bandwidth: Mapping[str, float]) -> dict[K, float]:
    """(1) The max-min fair rate of every flow; a flow without links has an infinite rate.

    Args:
        uses: flow -> link -> weight > 0.
        bandwidth: of every link, in units of rate x weight (bytes/s for bytes and weight 1).

    A link's fair share never falls while others freeze, so a heap of shares that are looked at again when popped finds the minimum.

    >>> one = 1.0
    >>> rates = max_min_rates({"a": {"x": one}, "b": {"x": one, "y": one}, "c": {"y": one}}, {"x": 1.0, "y": 3.0})
    >>> rates["a"], rates["b"], rates["c"]
    (0.5, 0.5, 2.5)
    """
    rates: dict[K, float] = {}
    users: dict[str, dict[K, float]] = {}
    for flow, weights in uses.items():
        if not weights:
            rates[flow] = float("inf")
        for name, weight in weights.items():
            users.setdefault(name, {})[flow] = weight
    left = {name: bandwidth[name] for name in users}
    place = {name: number for number, name in enumerate(users)}
    heap = [(left[name] / sum(users[name].values()), place[name], name) for name in users]
    heapq.heapify(heap)
    while heap:
        share, _, name = heapq.heappop(heap)
        if not users[name]:
            continue
        now = left[name] / sum(users[name].values())
        if now > share:  # others have frozen since: look again when it is this link's turn
            heapq.heappush(heap, (now, place[name], name))
            continue
        for flow in tuple(users[name]):
            rates[flow] = now
            for other, weight in uses[flow].items():
                del users[other][flow]
                left[other] = max(left[other] - now * weight, 0.0)
    return rates
