"""What each algorithm takes with each protocol, from an interconnect's constants.  S bytes, p ranks, g per node, N nodes.

(1) ring       base + (k - k') hop + k' net hop + s S / B + fill         k = (2) (p-1) steps, k' = (2) (N-1) of them between nodes  -> ring_s
(2) tree       base + 2 ((g-1) hop + log2 N net hop) + 2 S / B + fill    all-reduce                                              -> tree_s
(3) switch     base + S / B_switch + fill                                NVLS: all-reduce within a node                          -> switch_s
(4) joined     base + log2 N (2 net hop + level fill) + max(S / B_switch, x S / (g B_net)) + fill     x = 1 for N = 2, else 2    -> switch_s
(5) logarithm  base + ceil(log2 N) net hop + s S / B + fill              PAT: gather, scatter with one rank per node        -> logarithmic_s
(6) exchange   base + (p-1) post + max(inside / B, outside / B_net) + fill     bytes of an all-to-all, send-receive           -> exchange_s

B is the smaller of a port's bandwidth and of what the g ranks of a node have of its network ports, each times the protocol's share.  A tree
sends S upwards and S downwards; with two nodes each node sends S, with more an inner node of one of the two trees has a parent and two
children and sends 2 S (of which each tree carries half).  fill grows with the size to a constant, F S / (S + S'): chunks fill a pipeline.
(4) is the NVLS tree.

NCCL takes what its own table says is quickest, so the time of a collective is the least of the candidates (planner.cost.nccl.model).

Sources: NCCL, src/graph/tuning.cc (form of (1) and (2)); Sanders, Speck & Traeff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan"; Patarasuk & Yuan 2009 (ring).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from planner.cost.nccl.groups import Group, Kind
from planner.cost.nccl.interconnect import Interconnect, Protocol, ProtocolTimes, between_sizes
from planner.ir.units import GB, US

__all__ = ["Candidate", "candidates"]

Candidate = tuple[str, Protocol, float]
"""(algorithm, protocol, seconds)."""
_MB = 1e6


def candidates(net: Interconnect, kind: Kind, size_bytes: float, group: Group, in_switch: bool = True) -> Iterator[Candidate]:
    """All ways in which NCCL could perform a collective of at least two ranks, and what each takes.

    Args:
        in_switch: the switch can add these numbers (floating point).
    """
    if kind in (Kind.ALL_TO_ALL, Kind.SEND_RECEIVE):
        yield "exchange", Protocol.SIMPLE, exchange_s(net, kind, size_bytes, group)
        return
    for protocol in net.protocols:
        yield "ring", protocol, ring_s(net, protocol, kind, size_bytes, group)
        if kind is Kind.ALL_REDUCE:
            yield "tree", protocol, tree_s(net, protocol, size_bytes, group)
        scatters = kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
        if protocol is Protocol.SIMPLE and scatters and group.local == 1 and group.nodes > 2:
            yield "logarithmic", protocol, logarithmic_s(net, protocol, kind, size_bytes, group)
    if kind is Kind.ALL_REDUCE and in_switch and net.switch is not None and group.local >= net.switch.fewest_ranks:
        yield "switch", Protocol.SIMPLE, switch_s(net, size_bytes, group)


def _bandwidth(net: Interconnect, protocol: Protocol, group: Group) -> float:
    """B in bytes/s."""
    own = net.protocols[protocol]
    inside = between_sizes(net.port_GBps, group.local) * own.share if group.local > 1 else float("inf")
    outside = group.local * net.net_GBps * own.net_share if group.nodes > 1 else float("inf")
    return GB * min(inside, outside)


def _fill_s(fill_us: float, fill_MB: float, size_bytes: float) -> float:
    return US * fill_us * size_bytes / (size_bytes + fill_MB * _MB)


def _fills_s(own: ProtocolTimes, size_bytes: float, group: Group) -> float:
    level_s = _fill_s(own.net_fill_us, own.net_fill_MB, size_bytes)
    return _fill_s(own.fill_us, own.fill_MB, size_bytes) + group.levels * level_s


def ring_s(net: Interconnect, protocol: Protocol, kind: Kind, size_bytes: float, group: Group) -> float:
    """Equation (1)."""
    own = net.protocols[protocol]
    within, between = group.ring_steps(kind)
    travel_s = kind.sent_share(group.ranks) * size_bytes / _bandwidth(net, protocol, group)
    return US * (own.base_us + within * own.hop_us + between * own.net_hop_us) + travel_s + _fills_s(own, size_bytes, group)


def tree_s(net: Interconnect, protocol: Protocol, size_bytes: float, group: Group) -> float:
    """Equation (2)."""
    own = net.protocols[protocol]
    steps_us = 2 * ((group.local - 1) * own.tree_hop_us + group.levels * own.tree_net_hop_us)
    travel_s = 2 * size_bytes / _bandwidth(net, protocol, group)
    return US * (own.base_us + steps_us) + travel_s + _fills_s(own, size_bytes, group)


def logarithmic_s(net: Interconnect, protocol: Protocol, kind: Kind, size_bytes: float, group: Group) -> float:
    """Equation (5)."""
    own = net.protocols[protocol]
    travel_s = kind.sent_share(group.ranks) * size_bytes / _bandwidth(net, protocol, group)
    return US * (own.base_us + ceil(group.levels) * own.tree_net_hop_us) + travel_s + _fills_s(own, size_bytes, group)


def switch_s(net: Interconnect, size_bytes: float, group: Group) -> float:
    """Equations (3) and (4)."""
    assert net.switch is not None, "the caller has looked"
    switch, own = net.switch, net.protocols[Protocol.SIMPLE]
    fill_s = _fill_s(switch.fill_us, switch.fill_MB, size_bytes)
    if group.nodes == 1:
        return US * switch.base_us + size_bytes / (GB * switch.GBps) + fill_s
    leaving = (1 if group.nodes == 2 or net.sharp else 2) * size_bytes / (GB * group.local * net.net_GBps)
    travel_s = max(size_bytes / (GB * switch.GBps * switch.across_share), leaving)
    level_s = 2 * US * own.tree_net_hop_us + _fill_s(own.net_fill_us, own.net_fill_MB, size_bytes)
    return US * switch.base_us + (1 if net.sharp else group.levels) * level_s + travel_s + fill_s


def exchange_s(net: Interconnect, kind: Kind, size_bytes: float, group: Group) -> float:
    """Equation (6)."""
    peers = 1 if kind is Kind.SEND_RECEIVE else group.ranks - 1
    away = (group.ranks - group.local) / max(group.ranks - 1, 1)
    sent = kind.sent_share(group.ranks) * size_bytes
    inside_s = (1 - away) * sent / (GB * between_sizes(net.exchange_GBps, group.local)) if group.local > 1 else 0.0
    post_us = peers * ((1 - away) * net.post_us + away * net.net_post_us)
    hop_us = net.protocols[Protocol.SIMPLE].net_hop_us if group.nodes > 1 else 0.0
    fill_s = _fill_s(net.exchange_fill_us, net.exchange_fill_MB, size_bytes)
    return US * (net.exchange_base_us + post_us + hop_us) + max(inside_s, away * sent / (GB * net.net_GBps)) + fill_s
