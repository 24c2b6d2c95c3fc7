"""A group of ranks on nodes, and what a collective is: its steps and the bytes that a rank sends.

16 ranks, 8 per node          a ring's steps            2 x 15 for an all-reduce, of which 2 x 1 leave a node
node 0   0 1 2 3 4 5 6 7      a tree's steps            2 x (7 within the node + 1 between nodes)
node 1   8 9 ...       15     bytes S                   of the whole tensor, as nccl-tests counts them
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil, log2

from planner.ir.collective import Collective
from planner.ir.errors import Unsupported

__all__ = ["Group", "Kind"]


class Kind(Enum):
    """What the ranks do together.  S counts the tensor that each rank holds before (all-reduce, reduce-scatter, all-to-all, broadcast,
    send-receive) or after (all-gather)."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND_RECEIVE = "send_receive"

    @classmethod
    def of(cls, collective: Collective) -> Kind:
        """The kind of a boxing's collective.

        Raises:
            Unsupported: LOCAL, which is none.
        """
        if collective is Collective.LOCAL:
            raise Unsupported("a local boxing is no collective: nothing travels")
        if collective is Collective.SHIFT:
            return cls.SEND_RECEIVE
        return cls(collective.value)

    def sent_share(self, ranks: int) -> float:
        """Bytes that each rank sends around a ring, or to its peers, in units of S."""
        others = (ranks - 1) / ranks
        match self:
            case Kind.ALL_REDUCE:
                return 2 * others
            case Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                return others
            case Kind.BROADCAST | Kind.SEND_RECEIVE:
                return 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """``ranks`` ranks, ``per_node`` of them on each node (fewer on the last).

    Raises:
        Unsupported: a count below 1.
    """

    ranks: int
    per_node: int

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_node < 1:
            raise Unsupported(f"a group of {self.ranks} ranks, {self.per_node} per node; both are at least 1")

    @property
    def nodes(self) -> int:
        return ceil(self.ranks / self.per_node)

    @property
    def local(self) -> int:
        """Ranks of the group on one node."""
        return min(self.ranks, self.per_node)

    @property
    def levels(self) -> float:
        """Levels of a binary tree over the nodes."""
        return log2(self.nodes)

    def ring_steps(self, kind: Kind) -> tuple[int, int]:
        """(within a node, between nodes): steps around a ring that follow each other."""
        rounds = 2 if kind is Kind.ALL_REDUCE else 1
        between = rounds * (self.nodes - 1)
        return rounds * (self.ranks - 1) - between, between
