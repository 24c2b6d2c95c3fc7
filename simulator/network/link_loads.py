"""Loads of links while flows pass: the flows on each link, their rates, and when the next one ends.

simulator.network.flows steps this; acts of a Plan have speeds instead (simulator.network.act_flows), by the same fairness (simulator.network.sharing).

    pop_ended(now), enter(flow)   any number at one instant
    settle(now)                   rates of what these touched, by the Sharing; everything else keeps its rate and its end

A rate that does not change leaves the flow's foreseen end alone, so a flow that nobody disturbs ends exactly at start + bytes / rate.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.network.links import Link, Sharing
from simulator.network.sharing import max_min_rates

__all__ = ["RateSpan", "LinkLoads"]

RateSpan = tuple[float, float, float]
"""(from_s, until_s, bytes/s): what a flow moved, while its rate stood still."""


@dataclass(slots=True, eq=False)
class _Passing:
    """One flow on its links.  ``left_bytes`` is what was left at ``since_s``; ``version`` tells stale entries of the heap."""

    uses: Mapping[str, float]
    number: int
    left_bytes: float
    since_s: float
    rate: float = 0.0
    version: int = 0
    pieces: list[RateSpan] = field(default_factory=list)


class LinkLoads:
    """Mutable; the names of flows are the caller's, and times only grow."""

    def __init__(self, links: Mapping[str, Link], sharing: Sharing) -> None:
        self._bandwidth = {name: link.bandwidth_bytes_per_s for name, link in links.items()}
        self._sharing = sharing
        self._passing: dict[str, _Passing] = {}
        self._on: dict[str, dict[str, None]] = {name: {} for name in links}
        self._ends: list[tuple[float, int, str, int]] = []
        self._touched: dict[str, None] = {}
        self._entered: list[str] = []
        self._count = 0

    def enter(self, flow: str, uses: Mapping[str, float], size_bytes: float, now_s: float) -> None:
        """The first byte of a flow is at the links; ``settle`` gives it a rate.

        Args:
            uses: link -> weight > 0 (simulator.network.sharing), 1 for each link of a route.
        """
        self._count += 1
        self._passing[flow] = _Passing(uses, self._count, size_bytes, now_s)
        self._entered.append(flow)
        for name in uses:
            self._on[name][flow] = None
            self._touched[name] = None

    def next_end_s(self) -> float:
        """When the next flow ends if nothing else happens; infinite when none moves."""
        while self._ends:
            end_s, _, flow, version = self._ends[0]
            passing = self._passing.get(flow)
            if passing is not None and passing.version == version:
                return end_s
            heapq.heappop(self._ends)
        return float("inf")

    def pop_ended(self, now_s: float) -> list[tuple[str, tuple[RateSpan, ...]]]:
        """Remove the flows that end at ``now_s``; returns each with its rates over time."""
        ended: list[tuple[str, tuple[RateSpan, ...]]] = []
        while self.next_end_s() <= now_s:
            flow = heapq.heappop(self._ends)[2]
            passing = self._passing.pop(flow)
            for name in passing.uses:
                del self._on[name][flow]
                self._touched[name] = None
            self._note(passing, now_s)
            ended.append((flow, tuple(passing.pieces)))
        return ended

    def settle(self, now_s: float) -> None:
        """Recompute, from ``now_s`` on, the rate of every flow that changes since the last call affect."""
        match self._sharing:
            case Sharing.NONE:
                changed = (flow for name in self._touched for flow in self._on[name])
                rates = {flow: self._alone(flow) for flow in (*self._entered, *changed)}
            case Sharing.FIFO:
                oldest = (next(iter(self._on[name])) for name in self._touched if self._on[name])
                rates = {flow: self._alone(flow) for flow in (*oldest, *self._entered) if self._may_pass(flow)}
            case Sharing.MAX_MIN:
                rates = self._fair()
        self._entered, self._touched = [], {}
        for flow in sorted(rates, key=lambda flow: self._passing[flow].number):
            self._set(flow, rates[flow], now_s)

    def _alone(self, flow: str) -> float:
        return min((self._bandwidth[name] / weight for name, weight in self._passing[flow].uses.items()), default=float("inf"))

    def _may_pass(self, flow: str) -> bool:
        return all(next(iter(self._on[name])) == flow for name in self._passing[flow].uses)

    def _fair(self) -> dict[str, float]:
        """Max-min fair rates of all flows that share, directly or over others, a link that was touched."""
        flows, links, waiting = dict.fromkeys(self._entered), dict(self._touched), list(self._touched)
        while waiting:
            for flow in self._on[waiting.pop()]:
                if flow in flows:  # the links of those that entered are all touched
                    continue
                flows[flow] = None
                for name in self._passing[flow].uses:
                    if name not in links:
                        links[name] = None
                        waiting.append(name)
        return max_min_rates({flow: self._passing[flow].uses for flow in flows}, self._bandwidth)

    def _set(self, flow: str, rate: float, now_s: float) -> None:
        passing = self._passing[flow]
        if rate == passing.rate:
            return
        self._note(passing, now_s)
        passing.rate = rate
        passing.version += 1
        self._count += 1
        end_s = now_s + passing.left_bytes / rate if passing.left_bytes else now_s
        heapq.heappush(self._ends, (end_s, self._count, flow, passing.version))

    def _note(self, passing: _Passing, now_s: float) -> None:
        """Record the bytes that have passed since the last change."""
        if passing.rate and now_s > passing.since_s:
            passing.pieces.append((passing.since_s, now_s, passing.rate))
            passing.left_bytes = max(passing.left_bytes - (now_s - passing.since_s) * passing.rate, 0.0)
        passing.since_s = now_s
