"""The collectives' algorithms, as rounds.  n bytes, p ranks, alpha seconds per round, beta bytes/s per port; closed forms in simulator.theory.

(1) ring                 2 (p-1) rounds of n/p                    any p          -> ring_all_reduce(), ring_reduce_scatter(), ring_all_gather()
(2) halving-doubling     2 log2 p rounds of n/2, n/4, ...         p a power of 2 -> halving_doubling_all_reduce()
(3) double binary tree   2 (h + k - 1) rounds, k pieces per tree  any p          -> double_tree_all_reduce()
(4) direct all-to-all    p-1 rounds of n/p                        any p          -> direct_all_to_all()
(5) two levels           ring inside, ring across, ring inside    any g x m      -> two_level_all_reduce()

Sources: (1) Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
(2) Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH" (Rabenseifner's).
(3) Sanders, Speck & Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
(4) Thakur et al. 2005 (pairwise exchange).
(5) the usual hierarchy of reduce-scatter, all-reduce of the shards, all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from simulator.network.rounds import Landing, Move, Rounds
from simulator.network.trees import double_tree

__all__ = [
    "direct_all_to_all",
    "double_tree_all_reduce",
    "halving_doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "two_level_all_reduce",
]

_Round = tuple[Move, ...]


def ring_reduce_scatter(num_ranks: int) -> Rounds:
    """(1), first half: rank r ends with the sum of chunk r.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "a ring reduce-scatter")
    blocks = [(block,) for block in range(p)]
    rounds = _ring(tuple(range(p)), blocks, Landing.ADD)
    return Rounds(name=f"ring_reduce_scatter_{p}", collective=Collective.REDUCE_SCATTER, num_ranks=p, num_chunks=p, rounds=rounds)


def ring_all_gather(num_ranks: int) -> Rounds:
    """(1), second half: rank r starts with chunk r and ends with all.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "a ring all-gather")
    rounds = _ring(tuple(range(p)), [(block,) for block in range(p)], Landing.PUT)
    return Rounds(name=f"ring_all_gather_{p}", collective=Collective.ALL_GATHER, num_ranks=p, num_chunks=p, rounds=rounds)


def ring_all_reduce(num_ranks: int) -> Rounds:
    """(1) Reduce-scatter, then all-gather, around one ring.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "a ring all-reduce")
    halves = ring_reduce_scatter(p).rounds + ring_all_gather(p).rounds
    return Rounds(name=f"ring_all_reduce_{p}", collective=Collective.ALL_REDUCE, num_ranks=p, num_chunks=p, rounds=halves)


def _ring(ring: Sequence[int], blocks: Sequence[tuple[int, ...]], landing: Landing) -> tuple[_Round, ...]:
    """p-1 rounds; member i (with p members) passes block i - 1 - t on to its right when adding, block i - t when gathering.

    Adding, member i ends with block i; gathering, it starts with block i.
    """
    p = len(ring)
    lag = 1 if landing is Landing.ADD else 0
    return tuple(
        tuple(Move(ring[i], ring[(i + 1) % p], blocks[(i - lag - t) % p], landing) for i in range(p) if blocks[(i - lag - t) % p])
        for t in range(p - 1)
    )


def halving_doubling_all_reduce(num_ranks: int) -> Rounds:
    """(2) Recursive halving (partners p/2, p/4, ... apart exchange the half that the other keeps), then the same way back.

    Raises:
        Unsupported: num_ranks is not a power of 2.
    """
    p = _at_least_one(num_ranks, "a halving-doubling all-reduce")
    if p & (p - 1):
        raise Unsupported(
            f"halving-doubling of {p} ranks: partners are found by halving, so the ranks are a power of 2; take {1 << p.bit_length() - 1} or "
            f"{1 << p.bit_length()} ranks, or ring_all_reduce({p}), which takes any number"
        )
    halving: list[_Round] = []
    distance = p // 2
    while distance:
        halving.append(tuple(Move(r, r ^ distance, _kept(r ^ distance, distance), Landing.ADD) for r in range(p)))
        distance //= 2
    doubling = [tuple(Move(m.dst, m.src, m.chunks, Landing.PUT) for m in moves) for moves in reversed(halving)]
    rounds = (*halving, *doubling)
    return Rounds(name=f"halving_doubling_{p}", collective=Collective.ALL_REDUCE, num_ranks=p, num_chunks=p, rounds=rounds)


def _kept(rank: int, distance: int) -> tuple[int, ...]:
    """The chunks that a rank answers for after the round with partners ``distance`` apart: those that agree with it above that bit."""
    first = rank // distance * distance
    return tuple(range(first, first + distance))


def double_tree_all_reduce(num_ranks: int, pieces: int = 1) -> Rounds:
    """(3) Half of the data up and down one binary tree, half on another in which (nearly) all inner ranks of the first are leaves.

    Args:
        pieces: k, pieces into which each half is cut, so that the levels of a tree work at once.

    Raises:
        Unsupported: num_ranks or pieces < 1.
    """
    p = _at_least_one(num_ranks, "a tree all-reduce")
    if pieces < 1:
        raise Unsupported(f"a tree all-reduce with {pieces} pieces; at least 1 piece travels through each tree")
    trees = double_tree(p)
    height = max(tree.height for tree in trees)
    rounds: list[list[Move]] = [[] for _ in range(2 * (height + pieces - 1))] if p > 1 else []
    for number, tree in enumerate(trees if p > 1 else ()):
        for piece in range(pieces):
            chunk = (number * pieces + piece,)
            for rank, parent in tree.edges():
                up = height - tree.depth[rank] + piece
                down = height + pieces - 1 + tree.depth[parent] + piece
                rounds[up].append(Move(rank, parent, chunk, Landing.ADD))
                rounds[down].append(Move(parent, rank, chunk, Landing.PUT))
    return Rounds(
        name=f"double_tree_{p}x{pieces}",
        collective=Collective.ALL_REDUCE,
        num_ranks=p,
        num_chunks=2 * pieces,
        rounds=tuple(tuple(moves) for moves in rounds),
    )


def direct_all_to_all(num_ranks: int) -> Rounds:
    """(4) In round t rank r sends to rank r + t what is meant for it.

    Raises:
        Unsupported: num_ranks < 1.
    """
    p = _at_least_one(num_ranks, "an all-to-all")
    rounds = tuple(tuple(Move(r, (r + t) % p, (r * p + (r + t) % p,), Landing.PUT) for r in range(p)) for t in range(1, p))
    return Rounds(name=f"direct_all_to_all_{p}", collective=Collective.ALL_TO_ALL, num_ranks=p, num_chunks=p * p, rounds=rounds)


def two_level_all_reduce(ranks_per_node: int, num_nodes: int) -> Rounds:
    """(5) Rank r is member r mod g of node r // g.  Each member's shard crosses the network once, on a ring of its own.

    Args:
        ranks_per_node, num_nodes: g and m.

    Raises:
        Unsupported: a count < 1.
    """
    g = _at_least_one(ranks_per_node, "the inner level of an all-reduce")
    m = _at_least_one(num_nodes, "the outer level of an all-reduce")
    shards = [tuple(range(member * m, (member + 1) * m)) for member in range(g)]
    nodes = [tuple(range(node * g, (node + 1) * g)) for node in range(m)]
    columns = [tuple(range(member, g * m, g)) for member in range(g)]
    inside = _together([_ring(node, shards, Landing.ADD) for node in nodes])
    across = _together(
        [
            _ring(column, [(chunk,) for chunk in shards[member]], Landing.ADD) + _ring(column, [(c,) for c in shards[member]], Landing.PUT)
            for member, column in enumerate(columns)
        ]
    )
    back = _together([_ring(node, shards, Landing.PUT) for node in nodes])
    return Rounds(
        name=f"two_level_all_reduce_{g}x{m}",
        collective=Collective.ALL_REDUCE,
        num_ranks=g * m,
        num_chunks=g * m,
        rounds=inside + across + back,
    )


def _together(groups: Sequence[Sequence[_Round]]) -> tuple[_Round, ...]:
    """Groups of ranks that work side by side, round by round."""
    return tuple(tuple(move for moves in at for move in moves) for at in zip(*groups, strict=True))


def _at_least_one(count: int, what: str) -> int:
    if count < 1:
        raise Unsupported(f"{what} of {count} ranks; at least 1 rank takes part")
    return count
