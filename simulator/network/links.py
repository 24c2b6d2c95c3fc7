"""What flows over what: links, routes, flows, and the three ways in which flows share a link.

    flow = bytes along a route of directed links, once the flows it waits for have ended

      waits ----> latency ----> its bytes pass, at one rate on all links of the route ----> ended
      (after, not_before_s)     at most the narrowest link's bandwidth, less where links are shared

Bandwidth belongs to a Link (bytes/s, one direction), latency to a Route: it is paid once, before the first byte, and takes no bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from planner.ir.errors import InvalidCluster, InvalidPlan

__all__ = ["Flow", "Link", "Route", "Sharing", "check_flows"]


class Sharing(Enum):
    """How the flows on one link share it.

    NONE      every flow has the whole bandwidth of its narrowest link, as if it were alone
    FIFO      a link carries one flow at a time; a flow passes when it is the oldest on every link of its route
    MAX_MIN   all at once, and no flow can be made faster except at the cost of one that is not faster than it
    """

    NONE = "none"
    FIFO = "fifo"
    MAX_MIN = "max_min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a wire, a port or an uplink.

    Raises:
        InvalidCluster: a bandwidth that is not finite and > 0.
    """

    name: str
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise InvalidCluster(f"link {self.name}: {self.bandwidth_bytes_per_s} bytes/s; a bandwidth is finite and > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The links from a sender to a receiver, by name, and the latency of the way in seconds.

    An empty route stays inside a rank: its bytes need no time beyond the latency.
    """

    links: tuple[str, ...]
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InvalidCluster(f"route over {self.links}: latency {self.latency_s} s; a latency is finite and >= 0")
        if len(set(self.links)) < len(self.links):
            raise InvalidCluster(f"route over {self.links} uses a link twice; list every link of a route once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """``size_bytes`` along ``route``, not before ``not_before_s`` and not before every flow of ``after`` has ended.

    extra_s: seconds between the last of ``after`` and the latency (a computation in between, a server's update).
    """

    name: str
    route: Route
    size_bytes: float
    after: tuple[str, ...] = ()
    not_before_s: float = 0.0
    extra_s: float = 0.0

    def __post_init__(self) -> None:
        for label, value in (("size_bytes", self.size_bytes), ("not_before_s", self.not_before_s), ("extra_s", self.extra_s)):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidPlan(f"flow {self.name}: {label} = {value}; it is finite and >= 0")


def check_flows(flows: Mapping[str, Flow], links: Mapping[str, Link]) -> None:
    """Refuse flows over links that do not exist, or that wait for flows that do not exist.

    Raises:
        InvalidPlan: the message names the flow and what it lacks.
    """
    for flow in flows.values():
        for name in flow.route.links:
            if name not in links:
                raise InvalidPlan(f"flow {flow.name} passes link {name}, which is not among the {len(links)} links of this network")
        for name in flow.after:
            if name not in flows:
                raise InvalidPlan(f"flow {flow.name} waits for flow {name}, which is not among the {len(flows)} flows")
