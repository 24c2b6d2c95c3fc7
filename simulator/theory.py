"""Closed forms to hold simulations against.  Numbers from here are of the kind ``theory``.

(1) ring all-reduce   T = 2 (p-1) (alpha + n / (p beta))                     -> ring_all_reduce_s()
(2) pipeline bubble   (p-1) / (m+p-1)          GPipe and 1F1B alike          -> bubble_fraction()
(3) chain of actors   L = max( max_i d_i,  max_i (d_i + d_{i+1}) / q_i )     -> chain_period_s()
(4) all-to-all        T = (p-1) (alpha + n / (p beta))                       -> all_to_all_s()

n bytes, p ranks or stages, m micro-batches; alpha = latency_s, beta = bandwidth_bytes_per_s of an idle network.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.cluster import LinkSpec

__all__ = [
    "all_to_all_s",
    "bubble_fraction",
    "chain_period_s",
    "ring_all_reduce_s",
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


def all_to_all_s(size_bytes: float, num_ranks: int, link: LinkSpec) -> float:
    """(4) Time of a direct all-to-all through one port per rank, in seconds.

    Args:
        size_bytes: n, what each rank holds before; 1/p of it stays.

    Raises:
        ValueError: num_ranks < 1 or size_bytes < 0.

    Source: Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH" (pairwise exchange).
    """
    if num_ranks < 1 or size_bytes < 0:
        raise ValueError(f"num_ranks = {num_ranks}, size_bytes = {size_bytes}; at least 1 rank and 0 bytes")
    return (num_ranks - 1) * link.time_s(size_bytes / num_ranks)
