"""A collective as rounds of moves: which rank sends which chunks to which rank, and whether they are added or put in place there.

    round 0      round 1      ...        all moves of a round read what was there before the round
    0 -c0-> 1    0 -c2-> 1
    1 -c1-> 2    1 -c0-> 2

Algorithms are pure functions from a number of ranks to a Rounds (simulator.network.algorithms); here is the form they share, and its meaning:
``perform`` plays it on sets of contributions, so that "who has which chunk" is checked and never assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from planner.ir.collective import Collective
from planner.ir.errors import InvalidPlan

__all__ = ["Holdings", "Landing", "Move", "Rounds", "expected_after", "initial", "perform", "states"]

Holdings = tuple[Mapping[int, frozenset[int]], ...]
"""Per rank: chunk -> the ranks whose data is added up in this copy of it."""


class Landing(Enum):
    """What happens to chunks where they arrive."""

    ADD = "add"
    PUT = "put"


@dataclass(frozen=True, slots=True)
class Move:
    """``src`` sends its copies of ``chunks`` to ``dst``."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    landing: Landing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """A collective of ``num_ranks`` ranks on ``num_chunks`` equal chunks.

    collective: what it does.  An ALL_REDUCE, REDUCE_SCATTER and ALL_GATHER have the chunks of one tensor (each rank's own block is chunk
    ``rank`` in the latter two); an ALL_TO_ALL has p x p chunks, number s p + d going from rank s to rank d.
    """

    name: str
    collective: Collective
    num_ranks: int
    num_chunks: int
    rounds: tuple[tuple[Move, ...], ...]

    def moves(self) -> Iterator[tuple[int, Move]]:
        """(round, move), in order."""
        return ((number, move) for number, moves in enumerate(self.rounds) for move in moves)

    def sent_chunks(self, rank: int) -> int:
        """Chunks that a rank sends in all."""
        return sum(len(move.chunks) for _, move in self.moves() if move.src == rank)


def initial(rounds: Rounds) -> Holdings:
    """What each rank holds before."""
    p = rounds.num_ranks
    match rounds.collective:
        case Collective.ALL_REDUCE | Collective.REDUCE_SCATTER:
            return tuple({chunk: frozenset({rank}) for chunk in range(rounds.num_chunks)} for rank in range(p))
        case Collective.ALL_GATHER:
            return tuple({rank: frozenset({rank})} for rank in range(p))
        case Collective.ALL_TO_ALL:
            return tuple({rank * p + dst: frozenset({rank}) for dst in range(p)} for rank in range(p))
        case _:
            raise InvalidPlan(f"{rounds.name}: a {rounds.collective.value} has no rounds; give a collective that moves data")


def expected_after(rounds: Rounds) -> Holdings:
    """What each rank must hold after, at least: the meaning of the collective."""
    p, everybody = rounds.num_ranks, frozenset(range(rounds.num_ranks))
    match rounds.collective:
        case Collective.ALL_REDUCE:
            return tuple(dict.fromkeys(range(rounds.num_chunks), everybody) for _ in range(p))
        case Collective.REDUCE_SCATTER:
            return tuple({rank: everybody} for rank in range(p))
        case Collective.ALL_GATHER:
            return tuple({chunk: frozenset({chunk}) for chunk in range(p)} for _ in range(p))
        case Collective.ALL_TO_ALL:
            return tuple({src * p + rank: frozenset({src}) for src in range(p)} for rank in range(p))
        case _:
            raise InvalidPlan(f"{rounds.name}: a {rounds.collective.value} has no rounds; give a collective that moves data")


def states(rounds: Rounds) -> Iterator[Holdings]:
    """The holdings before the first round and after each one.

    Raises:
        InvalidPlan: a rank sends what it does not hold, sends to itself, counts a contribution twice, or two moves of a round put one chunk
            into the same place.
    """
    now: list[dict[int, frozenset[int]]] = [dict(held) for held in initial(rounds)]
    yield tuple(dict(held) for held in now)
    for number, moves in enumerate(rounds.rounds):
        before = [dict(held) for held in now]
        fresh: set[tuple[int, int]] = set()
        for move in moves:
            _land(rounds.name, number, move, before, now, fresh)
        yield tuple(dict(held) for held in now)


def _land(
    name: str,
    number: int,
    move: Move,
    before: Sequence[Mapping[int, frozenset[int]]],
    now: Sequence[dict[int, frozenset[int]]],
    fresh: set[tuple[int, int]],
) -> None:
    where = f"{name}, round {number}, rank {move.src} -> {move.dst}"
    if move.src == move.dst:
        raise InvalidPlan(f"{where}: a move is between two ranks")
    for chunk in move.chunks:
        if chunk not in before[move.src]:
            raise InvalidPlan(f"{where}: rank {move.src} does not hold chunk {chunk}")
        if move.landing is Landing.PUT:
            if (move.dst, chunk) in fresh:
                raise InvalidPlan(f"{where}: chunk {chunk} is written twice in this round")
            now[move.dst][chunk] = before[move.src][chunk]
        else:
            twice = now[move.dst].get(chunk, frozenset()) & before[move.src][chunk]
            if twice:
                raise InvalidPlan(f"{where}: chunk {chunk} already has the data of ranks {sorted(twice)}; it would count twice")
            now[move.dst][chunk] = now[move.dst].get(chunk, frozenset()) | before[move.src][chunk]
        fresh.add((move.dst, chunk))


def perform(rounds: Rounds) -> Holdings:
    """Play all rounds and prove that they do what the collective means.

    Raises:
        InvalidPlan: as ``states``, or some rank lacks something in the end; the message names the first such chunk.
    """
    *_, after = states(rounds)
    for rank, wanted in enumerate(expected_after(rounds)):
        for chunk, ranks in wanted.items():
            if after[rank].get(chunk) != ranks:
                raise InvalidPlan(
                    f"{rounds.name}: after {len(rounds.rounds)} rounds rank {rank} holds chunk {chunk} of ranks "
                    f"{sorted(after[rank].get(chunk, frozenset()))}, not of {len(ranks)} ranks"
                )
    return after
