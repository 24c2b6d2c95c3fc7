"""Closed forms to hold simulations against.  Numbers from here are of the kind ``theory``.

(1) ring all-reduce   T = 2 (p-1) (alpha + n / (p beta))                     -> ring_all_reduce_s()
(2) pipeline bubble   (p-1) / (m+p-1)          GPipe and 1F1B alike          -> bubble_fraction()
(3) chain of actors   L = max( max_i d_i,  max_i (d_i + d_{i+1}) / q_i )     -> chain_period_s()
(4) roofline of a pipeline step  T = (m+p-1) (F+B)  equal stages, free links -> pipeline_step_s()

On an idle network, n bytes, alpha = latency_s, beta = bandwidth_bytes_per_s:
(5) halving-doubling  T = 2 log2 p alpha + 2 (p-1)/p n / beta                -> halving_doubling_all_reduce_s()
(6) double tree       T = 2 (h + k - 1) (alpha + n / (2 k beta)),  h = ceil(log2 p), k pieces per tree       -> double_tree_all_reduce_s()
(7) all-to-all        T = (p-1) (alpha + n / (p beta))                       -> all_to_all_s()
(8) two levels        T = 2 (g-1) (alpha_1 + n / (g beta_1)) + 2 (m-1) (alpha_2 + n / (m beta_2))            -> two_level_all_reduce_s()
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.cluster import LinkSpec

__all__ = [
    "all_to_all_s",
    "bubble_fraction",
    "chain_period_s",
    "double_tree_all_reduce_s",
    "halving_doubling_all_reduce_s",
    "pipeline_step_s",
    "ring_all_reduce_s",
    "two_level_all_reduce_s",
]


def ring_all_reduce_s(size_bytes: float, num_ranks: int, link: LinkSpec) -> float:
    """(1) Time of a ring all-reduce on an idle ring, in seconds.

    Args:
        size_bytes: n, bytes of the tensor on each rank.
        num_ranks: p; 1 rank needs no time.
        link: alpha = latency_s, beta = bandwidth_bytes_per_s of each hop.

    Raises:
        ValueError: num_ranks < 1 or size_bytes < 0.

    Source: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations": 2 (p-1) rounds of n/p bytes.
    """
    if num_ranks < 1 or size_bytes < 0:
        raise ValueError(f"num_ranks = {num_ranks}, size_bytes = {size_bytes}; at least 1 rank and 0 bytes")
    return 2 * (num_ranks - 1) * link.time_s(size_bytes / num_ranks)


def bubble_fraction(num_stages: int, micro_batches: int) -> float:
    """(2) Idle share of a pipeline step with p equal stages and m micro-batches, GPipe or 1F1B.

    Raises:
        ValueError: a count < 1.

    Source: Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021 (Megatron-LM), section 2.2.1 gives (p-1)/m of the ideal time.

    >>> bubble_fraction(4, 12)
    0.2
    """
    if num_stages < 1 or micro_batches < 1:
        raise ValueError(f"num_stages = {num_stages}, micro_batches = {micro_batches}; both are at least 1")
    return (num_stages - 1) / (micro_batches + num_stages - 1)


def chain_period_s(durations_s: Sequence[float], quota: int | Sequence[int]) -> float:
    """(3) Steady-state period of a chain of actors, each on a stream of its own, in seconds per act.

    Neighbours i, i+1 and the q_i blocks between them are a cycle with q_i tokens that takes d_i + d_{i+1}.

    Args:
        durations_s: d_i, seconds per act of each actor in the chain.
        quota: q, of every Regst, or q_i of the Regst that actor i produces (the last actor's is not used).

    Raises:
        ValueError: no actor, or a quota < 1.

    Source: maximum cycle ratio of a timed marked graph, Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and Linearity", ch. 2;
    SEMANTICS 4.2.

    >>> chain_period_s([1.0, 3.0, 1.0], 1), chain_period_s([1.0, 3.0, 1.0], 2)
    (4.0, 3.0)
    """
    quotas = [quota] * len(durations_s) if isinstance(quota, int) else list(quota)
    if not durations_s or min(quotas) < 1 or len(quotas) < len(durations_s) - 1:
        raise ValueError(f"{len(durations_s)} durations with quotas {quotas}; a chain has at least 1 actor and quotas >= 1")
    pairs = zip(durations_s, durations_s[1:], quotas, strict=False)
    return max(*durations_s, *((here + there) / q for here, there, q in pairs), 0.0)


def pipeline_step_s(num_stages: int, micro_batches: int, forward_s: float, backward_s: float) -> float:
    """(4) Time of a synchronous pipeline step with equal stages and free links, in seconds: (m + p - 1)(F + B).

    Args:
        forward_s, backward_s: F and B, seconds of one micro-batch on one stage.

    Raises:
        ValueError: a count < 1.

    Source: the ideal time m (F+B) divided by one minus the bubble fraction (2).
    """
    return micro_batches * (forward_s + backward_s) / (1.0 - bubble_fraction(num_stages, micro_batches))


def _check_group(size_bytes: float, *counts: int) -> None:
    if min(counts) < 1 or size_bytes < 0:
        raise ValueError(f"counts {counts}, size_bytes = {size_bytes}; at least 1 of each and 0 bytes")


def halving_doubling_all_reduce_s(size_bytes: float, num_ranks: int, link: LinkSpec) -> float:
    """(5) Time of a recursive halving-doubling all-reduce, in seconds: each rank has one port, nobody else uses it.

    Raises:
        ValueError: num_ranks is not a power of 2, or size_bytes < 0.

    Source: Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    p = num_ranks
    _check_group(size_bytes, p)
    if p & (p - 1):
        raise ValueError(f"num_ranks = {p}; halving-doubling is for powers of 2")
    return 2 * (p.bit_length() - 1) * link.latency_s + 2 * (p - 1) / p * size_bytes / link.bandwidth_bytes_per_s


def double_tree_all_reduce_s(size_bytes: float, num_ranks: int, link: LinkSpec, pieces: int = 1) -> float:
    """(6) Time of a double binary tree all-reduce, in seconds, where moves of the same round do not share a port.

    Through one port per rank a round takes at most alpha + n / (k beta), since an inner rank hears two children: with that in place of
    n / (2 k beta) this is an upper bound, and for large k it tends to 2 n / beta.

    Args:
        pieces: k, pieces into which each tree's half is cut.

    Raises:
        ValueError: a count < 1 or size_bytes < 0.

    Source: Sanders, Speck & Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"; 2 (h + k - 1) rounds of a
    reduction and a broadcast, one after the other, each pipelined in k pieces over h levels.
    """
    _check_group(size_bytes, num_ranks, pieces)
    if num_ranks == 1:
        return 0.0
    height = (num_ranks - 1).bit_length()
    return 2 * (height + pieces - 1) * link.time_s(size_bytes / (2 * pieces))


def all_to_all_s(size_bytes: float, num_ranks: int, link: LinkSpec) -> float:
    """(7) Time of a direct all-to-all through one port per rank, in seconds.

    Args:
        size_bytes: n, what each rank holds before; 1/p of it stays.

    Raises:
        ValueError: num_ranks < 1 or size_bytes < 0.

    Source: Thakur et al. 2005 (pairwise exchange).
    """
    _check_group(size_bytes, num_ranks)
    return (num_ranks - 1) * link.time_s(size_bytes / num_ranks)


def two_level_all_reduce_s(size_bytes: float, ranks_per_node: int, num_nodes: int, inner: LinkSpec, outer: LinkSpec) -> float:
    """(8) Time of reduce-scatter inside nodes, all-reduce of the shards across, all-gather inside, in seconds; rings on both levels.

    Args:
        ranks_per_node, num_nodes: g and m.
        inner: port of a device inside its node.   outer: port of a node, which its g rings share.

    Raises:
        ValueError: a count < 1 or size_bytes < 0.

    Source: ring all-reduce (1) on both levels; the outer one moves n/g on each of g rings that have beta_2 / g each.
    """
    g, m = ranks_per_node, num_nodes
    _check_group(size_bytes, g, m)
    return 2 * (g - 1) * inner.time_s(size_bytes / g) + 2 * (m - 1) * outer.time_s(size_bytes / m)
