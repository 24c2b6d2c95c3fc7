"""Where the links are: three networks of ranks, each with the route from any rank to any other.

    Ports       every rank one port out and one port in, behind a switch that is never in the way       out:0 ... in:2
    FullMesh    a wire of its own from every rank to every other: nobody shares                        wire:0:2
    Machine     a Cluster: devices' ports inside a node, the node's nic between nodes, the rack's uplink between racks

A Machine reads a Cluster as the price list does (planner.cost.mesh_links): traffic that leaves a node is limited by the nic and not by the
device's port, and a route has the latency of its outermost link.

What a move of a collective waits for before its first byte (collective_route):

    Ports, FullMesh        the wire's latency, in every round
    Machine                the collective's latency, once: latencies of a Cluster are a collective's, not a step's
    Machine of NCCL        the start of a kernel once, and in every round a step, within a node or between nodes (planner.cost.nccl, LL)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Protocol

from planner.cost.nccl import CollectiveModel
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.errors import InvalidCluster
from simulator.network.links import Link, Route

__all__ = ["Fabric", "FullMesh", "Machine", "Ports"]


class Fabric(Protocol):
    """A network of ranks 0 .. num_ranks-1."""

    @property
    def num_ranks(self) -> int: ...

    @property
    def links(self) -> tuple[Link, ...]: ...

    def route(self, src: int, dst: int) -> Route:
        """Raises InvalidCluster when a rank is not on this network."""
        ...

    def collective_route(self, src: int, dst: int, ranks: Sequence[int], number: int) -> Route:
        """The route of a move in round ``number`` of a collective of ``ranks``."""
        ...


def _check(fabric: Fabric, src: int, dst: int) -> None:
    for rank in (src, dst):
        if not 0 <= rank < fabric.num_ranks:
            raise InvalidCluster(f"route {src} -> {dst}: this network has ranks 0 to {fabric.num_ranks - 1}")


@dataclass(frozen=True)
class Ports:
    """A switch that is never in the way; ``port`` is each rank's port, the same out and in, both at once."""

    num_ranks: int
    port: LinkSpec

    @cached_property
    def links(self) -> tuple[Link, ...]:
        names = (f"{way}:{rank}" for way in ("out", "in") for rank in range(self.num_ranks))
        return tuple(Link(name=name, bandwidth_bytes_per_s=self.port.bandwidth_bytes_per_s) for name in names)

    def route(self, src: int, dst: int) -> Route:
        _check(self, src, dst)
        return Route(links=(f"out:{src}", f"in:{dst}") if src != dst else (), latency_s=self.port.latency_s if src != dst else 0.0)

    def collective_route(self, src: int, dst: int, ranks: Sequence[int], number: int) -> Route:
        return self.route(src, dst)


@dataclass(frozen=True)
class FullMesh:
    """A wire from every rank to every other."""

    num_ranks: int
    wire: LinkSpec

    @cached_property
    def links(self) -> tuple[Link, ...]:
        p, bandwidth = self.num_ranks, self.wire.bandwidth_bytes_per_s
        return tuple(Link(name=f"wire:{i}:{j}", bandwidth_bytes_per_s=bandwidth) for i in range(p) for j in range(p) if i != j)

    def route(self, src: int, dst: int) -> Route:
        _check(self, src, dst)
        return Route(links=(f"wire:{src}:{dst}",) if src != dst else (), latency_s=self.wire.latency_s if src != dst else 0.0)

    def collective_route(self, src: int, dst: int, ranks: Sequence[int], number: int) -> Route:
        return self.route(src, dst)


@dataclass(frozen=True)
class Machine:
    """The devices of a Cluster."""

    cluster: Cluster

    @property
    def num_ranks(self) -> int:
        return self.cluster.num_devices

    @cached_property
    def links(self) -> tuple[Link, ...]:
        cluster = self.cluster
        if cluster.parts:
            return self._links_of_parts
        racks = range(cluster.rack_of(cluster.num_devices - 1) + 1)
        levels = ((cluster.node, "device", range(cluster.num_devices)), (cluster.nic, "nic", range(cluster.num_nodes)))
        named_specs = [(spec, f"{name}:{way}:{i}") for spec, name, places in levels for i in places for way in ("out", "in")]
        named_specs += [(cluster.rack, f"rack:{way}:{i}") for i in racks for way in ("out", "in")]
        return tuple(Link(name=name, bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s) for spec, name in named_specs if spec is not None)

    def route(self, src: int, dst: int) -> Route:
        _check(self, src, dst)
        cluster = self.cluster
        if src == dst:
            return Route(links=())
        latency_s = cluster.link_between((src, dst)).latency_s
        here, there = cluster.node_of(src), cluster.node_of(dst)
        if cluster.parts and cluster.part_of(src) != cluster.part_of(dst):
            pair = f"between:{cluster.part_of(src)[0].name}:{cluster.part_of(dst)[0].name}"
            return Route(links=(f"nic:out:{here}", pair, f"nic:in:{there}"), latency_s=latency_s)
        if here == there or cluster.nic is None:
            return Route(links=(f"device:out:{src}", f"device:in:{dst}"), latency_s=latency_s)
        links = [f"nic:out:{here}", f"nic:in:{there}"]
        if cluster.rack is not None and cluster.rack_of(src) != cluster.rack_of(dst):
            links[1:1] = [f"rack:out:{cluster.rack_of(src)}", f"rack:in:{cluster.rack_of(dst)}"]
        return Route(links=tuple(links), latency_s=latency_s)

    @cached_property
    def bandwidth_bytes_per_s(self) -> Mapping[str, float]:
        """Of every link, by name."""
        return {link.name: link.bandwidth_bytes_per_s for link in self.links}

    @cached_property
    def _links_between(self) -> dict[tuple[int, int], tuple[str, ...]]:
        return {}

    def links_between(self, src: int, dst: int) -> tuple[str, ...]:
        """The links of a route, worked out once."""
        links = self._links_between.get((src, dst))
        if links is None:
            links = self._links_between[src, dst] = self.route(src, dst).links
        return links

    @property
    def _links_of_parts(self) -> tuple[Link, ...]:
        """Ports of devices and of nodes at the rates of their kind, and what lies between each two kinds."""
        cluster, speed = self.cluster, dict[str, float]()
        for rank in range(cluster.num_devices):
            part, node = cluster.part_of(rank)[0], cluster.node_of(rank)
            nic = part.nic if part.nic is not None else part.node
            for way in ("out", "in"):
                speed[f"device:{way}:{rank}"] = part.node.bandwidth_bytes_per_s
                speed[f"nic:{way}:{node}"] = nic.bandwidth_bytes_per_s
        for src, dst in permutations([part.name for part in cluster.parts], 2):
            speed[f"between:{src}:{dst}"] = cluster.pair_link(src, dst).bandwidth_bytes_per_s
        return tuple(Link(name=name, bandwidth_bytes_per_s=bandwidth) for name, bandwidth in speed.items())

    def collective_route(self, src: int, dst: int, ranks: Sequence[int], number: int) -> Route:
        route, cluster = self.route(src, dst), self.cluster.part_of_all(ranks)[0]
        if cluster.interconnect is None:
            return replace(route, latency_s=self.cluster.link_between(tuple(ranks)).latency_s if number == 0 else 0.0)
        between_nodes = self.cluster.node_of(src) != self.cluster.node_of(dst)
        start_s, step_s = CollectiveModel.for_interconnect(cluster.interconnect).step_latencies_s(between_nodes)
        return replace(route, latency_s=start_s + step_s if number == 0 else step_s)
