"""The collectives' algorithms, as rounds.  n bytes, p ranks, alpha seconds per round, beta bytes/s per port; closed forms in simulator.theory.

(1) ring                 2 (p-1) rounds of n/p       -> ring_all_reduce(), ring_reduce_scatter(), ring_all_gather()
(2) direct all-to-all    p-1 rounds of n/p           -> direct_all_to_all()

Sources: (1) Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
(2) Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH" (pairwise exchange).
"""

from __future__ import annotations

from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from simulator.network.rounds import Landing, Move, Rounds

__all__ = [
    "direct_all_to_all",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
]

_Round = tuple[Move, ...]


def ring_reduce_scatter(num_ranks: int) -> Rounds:
    """(1), first half: rank r ends with the sum of chunk r.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "a ring reduce-scatter")
    return _one_ring(Collective.REDUCE_SCATTER, p, _ring(p, Landing.ADD))


def ring_all_gather(num_ranks: int) -> Rounds:
    """(1), second half: rank r starts with chunk r and ends with all.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "a ring all-gather")
    return _one_ring(Collective.ALL_GATHER, p, _ring(p, Landing.PUT))


def ring_all_reduce(num_ranks: int) -> Rounds:
    """(1) Reduce-scatter, then all-gather, around one ring.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "a ring all-reduce")
    return _one_ring(Collective.ALL_REDUCE, p, _ring(p, Landing.ADD) + _ring(p, Landing.PUT))


def _one_ring(collective: Collective, num_ranks: int, rounds: tuple[_Round, ...]) -> Rounds:
    """Rounds around one ring, with a chunk per rank."""
    name = f"ring_{collective.value}_{num_ranks}"
    return Rounds(name=name, collective=collective, num_ranks=num_ranks, num_chunks=num_ranks, rounds=rounds)


def _ring(num_ranks: int, landing: Landing) -> tuple[_Round, ...]:
    """p-1 rounds; rank i passes chunk i - 1 - t on to its right when adding, chunk i - t when gathering.

    Adding, rank i ends with chunk i; gathering, it starts with chunk i.
    """
    p = num_ranks
    lag = 1 if landing is Landing.ADD else 0
    return tuple(tuple(Move(i, (i + 1) % p, ((i - lag - t) % p,), landing) for i in range(p)) for t in range(p - 1))


def direct_all_to_all(num_ranks: int) -> Rounds:
    """(2) In round t rank r sends to rank r + t what is meant for it.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "an all-to-all")
    rounds = tuple(tuple(Move(r, (r + t) % p, (r * p + (r + t) % p,), Landing.PUT) for r in range(p)) for t in range(1, p))
    return Rounds(name=f"direct_all_to_all_{p}", collective=Collective.ALL_TO_ALL, num_ranks=p, num_chunks=p * p, rounds=rounds)


def _at_least_one(count: int, what: str) -> int:
    if count < 1:
        raise Unsupported(f"{what} of {count} ranks; at least 1 rank takes part")
    return count
