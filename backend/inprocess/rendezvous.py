"""Where the ranks of one process meet for a collective (SEMANTICS 3.10).

    rank 0  --come--> |            |
    rank 2  --come--> | open act   | --> the last one gets all, in axis order, and does the work for all
    rank 1  --come--> |            |

No thread waits for the others: a rank that has come leaves its stream busy, and its thread goes on to other acts.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.acts.bookkeeper import BegunAct
from planner.ir.errors import InvalidPlan

__all__ = ["JointAct", "Rendezvous"]

JointAct = tuple[BegunAct, ...]
"""The act of every rank that performs it together, in axis order; of one rank where nobody needs to meet."""


class Rendezvous:
    """Of one group: the ranks along one axis, for the collectives of one stream."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self._here: dict[int, BegunAct] = {}

    def come(self, act: BegunAct) -> JointAct | None:
        """A rank is at its turn; the act of all ranks, once the last one has come.

        Raises:
            InvalidPlan: another act is open: the ranks list their collectives in different orders, on real groups a dead-lock.
        """
        actor, number, _ = act
        for rank, (other, its_number, _) in self._here.items():
            if (other.task.id, its_number) != (actor.task.id, number):
                raise InvalidPlan(
                    f"rank {actor.rank} came to collective {actor.task.id} (act {number}) while rank {rank} waits in {other.task.id} "
                    f"(act {its_number}); the ranks of a group need one order of their collectives: plan anew"
                )
        self._here[actor.rank] = act
        if len(self._here) < len(self.ranks):
            return None
        joint = tuple(self._here[rank] for rank in self.ranks)
        self._here = {}
        return joint

    def waiting(self) -> tuple[BegunAct, ...]:
        """Those that have come and wait for the others."""
        return tuple(self._here.values())
