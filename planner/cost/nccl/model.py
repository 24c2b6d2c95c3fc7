"""The time of a collective, as planners and predictors ask for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.cost.nccl.curves import Curves, curves_of
from planner.cost.nccl.groups import Group, Kind
from planner.cost.nccl.interconnect import Interconnect, Protocol, load_interconnect
from planner.cost.nccl.laws import Candidate, candidates
from planner.ir.errors import Unsupported
from planner.ir.units import GB, US

__all__ = ["CollectiveModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveModel:
    """Seconds of NCCL's collectives on one interconnect.

    curves: what was measured within a node; empty: the laws alone.
    """

    interconnect: Interconnect
    curves: Curves

    @classmethod
    def for_interconnect(cls, name: str, *, net_bytes_per_s: float | None = None) -> CollectiveModel:
        """The model of a named interconnect.

        Args:
            name: of a file in planner/cost/nccl/interconnects.
            net_bytes_per_s: of the network port that one rank has; None: as the file says.

        Raises:
            Unsupported: no interconnect has that name, or the port's rate is not > 0.

        >>> model = CollectiveModel.for_interconnect("h100-nvswitch")
        >>> model.seconds(Kind.ALL_REDUCE, 2**20, 8, 8) < model.seconds(Kind.ALL_REDUCE, 2**20, 64, 8)
        True
        """
        constants = load_interconnect(name)
        if net_bytes_per_s is not None:
            if not net_bytes_per_s > 0:
                raise Unsupported(f"interconnect {name}: {net_bytes_per_s} bytes/s of network per rank; a rate is > 0")
            constants = replace(constants, net_GBps=net_bytes_per_s / GB)
        return cls(interconnect=constants, curves=curves_of(name))

    def seconds(self, kind: Kind, size_bytes: float, ranks: int, ranks_per_node: int, *, in_switch: bool = True) -> float:
        """Seconds of one collective on idle links, launch of its kernel included.

        Args:
            size_bytes: of the tensor on each rank; all-gather: of the gathered one.
            ranks, ranks_per_node: of the group; its ranks have one network port each, also where they are few of a node's.
            in_switch: the numbers are floating point, so that a switch that adds may be used.

        Raises:
            Unsupported: sizes below 0, or counts below 1.
        """
        if not 0 <= size_bytes < float("inf"):
            raise Unsupported(f"{kind.value} of {size_bytes} bytes; a size is finite and >= 0")
        group = self._group(ranks, ranks_per_node)
        if ranks == 1:
            return 0.0
        size = max(size_bytes, 1.0)
        if group.nodes == 1:
            measured_s = self.curves.time_s(kind, size, ranks, in_switch, lambda n, p: self._law_s(kind, n, Group(p, p), in_switch))
            if measured_s is not None:
                return measured_s
        return self._law_s(kind, size, group, in_switch)

    def choice(self, kind: Kind, size_bytes: float, ranks: int, ranks_per_node: int, *, in_switch: bool = True) -> Candidate:
        """(algorithm, protocol, seconds) that the laws say NCCL takes; arguments as in ``seconds``, of at least two ranks."""
        found = candidates(self.interconnect, kind, max(size_bytes, 1.0), self._group(ranks, ranks_per_node), in_switch)
        return min(found, key=lambda candidate: candidate[2])

    def step_latencies_s(self, between_nodes: bool) -> tuple[float, float]:
        """(seconds of a collective without steps, seconds of a step) of few bytes around a ring, for who plays the steps one by one."""
        own = self.interconnect.protocols[Protocol.LL]
        return US * own.base_us, US * (own.net_hop_us if between_nodes else own.hop_us)

    def _group(self, ranks: int, ranks_per_node: int) -> Group:
        """Ranks that one NVLink domain can hold are taken to lie in one, whatever its nodes are."""
        return Group(ranks, max(ranks, ranks_per_node) if ranks <= self.interconnect.domain else ranks_per_node)

    def _law_s(self, kind: Kind, size_bytes: float, group: Group, in_switch: bool) -> float:
        return min(seconds for _, _, seconds in candidates(self.interconnect, kind, size_bytes, group, in_switch))
