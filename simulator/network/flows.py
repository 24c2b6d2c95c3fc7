"""Flows alone, event by event: the exact fluid simulation of a set of flows on shared links.

    t:  flows end; those that waited for them set out; those whose latency is over enter their links      (any number at t)
        -- then, once per instant, the rates of everything these touched are worked out anew --

Between two events all rates stand still, so the only error is the rounding of floating-point numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan
from simulator.network.link_loads import LinkLoads, RateSpan
from simulator.network.links import Flow, Link, Sharing, check_flows

__all__ = ["FlowTimes", "FlowTrace", "simulate_flows"]


@dataclass(frozen=True, slots=True)
class FlowTimes:
    """When a flow set out (its latency began), and when its last byte arrived; ``pieces``: rates in between, in bytes/s."""

    start_s: float
    end_s: float
    pieces: tuple[RateSpan, ...]


@dataclass(frozen=True, kw_only=True)
class FlowTrace:
    """What happened, of the kind ``sim``."""

    flows: Mapping[str, Flow]
    times: Mapping[str, FlowTimes]
    links: Mapping[str, Link]

    @property
    def end_s(self) -> float:
        """When the last flow ended; 0 without flows."""
        return max((times.end_s for times in self.times.values()), default=0.0)

    def carried_bytes(self, link: str) -> float:
        """What a link carried in all."""
        return sum(flow.size_bytes for flow in self.flows.values() if link in flow.route.links)

    def utilisation(self, link: str) -> float:
        """Share of a link's bandwidth that was used from 0 to end_s."""
        return self.carried_bytes(link) / (self.links[link].bandwidth_bytes_per_s * self.end_s) if self.end_s else 0.0

    def rate_on(self, link: str) -> tuple[RateSpan, ...]:
        """(from_s, until_s, bytes/s) of a link, in order of time, without its idle spans: a curve to draw."""
        steps: dict[float, float] = {}
        for name, flow in self.flows.items():
            if link in flow.route.links:
                for begin_s, until_s, rate in self.times[name].pieces:
                    steps[begin_s] = steps.get(begin_s, 0.0) + rate
                    steps[until_s] = steps.get(until_s, 0.0) - rate
        curve: list[RateSpan] = []
        level, instants = 0.0, sorted(steps)
        for here_s, there_s in zip(instants, instants[1:], strict=False):
            level += steps[here_s]
            if level > 1e-9 * self.links[link].bandwidth_bytes_per_s:
                curve.append((here_s, there_s, level))
        return tuple(curve)


def simulate_flows(flows: Iterable[Flow], links: Iterable[Link], sharing: Sharing = Sharing.MAX_MIN) -> FlowTrace:
    """Let flows pass over links until all have ended.

    Args:
        flows: names are unique; under FIFO, flows that reach a link at the same instant queue in this order.

    Returns:
        Start and end of every flow in seconds, and its rates in between.

    Raises:
        InvalidPlan: a name twice, or a link or flow that does not exist.   DeadLock: flows that wait for each other in a circle.
        InvalidCluster: a flow that does not end in finite time.

    Source: fluid (flow-level) network simulation, as in SimGrid (Casanova et al. 2014); fairness from sharing (1).

    >>> from simulator.network.links import Route
    >>> wire = Link(name="wire", bandwidth_bytes_per_s=100.0)
    >>> two = [Flow(name=name, route=Route(links=("wire",)), size_bytes=100) for name in "ab"]
    >>> [simulate_flows(two, [wire], sharing).end_s for sharing in Sharing]
    [1.0, 2.0, 2.0]
    """
    flow_of: dict[str, Flow] = {}
    for flow in flows:
        if flow.name in flow_of:
            raise InvalidPlan(f"two flows are called {flow.name}; names of flows are unique")
        flow_of[flow.name] = flow
    link_of = {link.name: link for link in links}
    check_flows(flow_of, link_of)
    place = {name: number for number, name in enumerate(flow_of)}
    missing = {name: len(set(flow.after)) for name, flow in flow_of.items()}
    readers: dict[str, list[str]] = {}
    for flow in flow_of.values():
        for name in dict.fromkeys(flow.after):
            readers.setdefault(name, []).append(flow.name)
    loads = LinkLoads(link_of, sharing)
    started: dict[str, float] = {}
    times: dict[str, FlowTimes] = {}
    entries: list[tuple[float, int, str]] = []

    def set_out(name: str, now_s: float) -> None:
        flow = flow_of[name]
        started[name] = max(now_s, flow.not_before_s) + flow.extra_s
        heapq.heappush(entries, (started[name] + flow.route.latency_s, place[name], name))

    for name, count in missing.items():
        if not count:
            set_out(name, 0.0)
    while (now_s := min(loads.next_end_s(), entries[0][0] if entries else float("inf"))) < float("inf"):
        for name, pieces in loads.pop_ended(now_s):
            times[name] = FlowTimes(started[name], now_s, pieces)
            for reader in readers.get(name, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    set_out(reader, now_s)
        while entries and entries[0][0] <= now_s:
            name = heapq.heappop(entries)[2]
            loads.enter(name, dict.fromkeys(flow_of[name].route.links, 1.0), flow_of[name].size_bytes, now_s)
        loads.settle(now_s)
    if endless := [name for name in started if name not in times]:
        raise InvalidCluster(
            f"flow {endless[0]} ends after more seconds than a float can hold; raise the bandwidth of {flow_of[endless[0]].route.links}"
        )
    if len(times) < len(flow_of):
        raise DeadLock(_explain_circle({name: flow_of[name] for name in flow_of if name not in times}))
    return FlowTrace(flows=flow_of, times={name: times[name] for name in flow_of}, links=link_of)


def _explain_circle(stuck: Mapping[str, Flow]) -> str:
    """The circle of flows that wait for each other, found by following who waits for whom."""
    path: dict[str, None] = {}
    current = next(iter(stuck))
    while current not in path:
        path[current] = None
        current = next(name for name in stuck[current].after if name in stuck)
    circle = [*list(path)[list(path).index(current) :], current]
    return f"{len(stuck)} flows never start, because they wait for each other: {' -> '.join(circle)}; take one of these out of 'after'"
