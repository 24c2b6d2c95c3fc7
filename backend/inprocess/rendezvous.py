"""Where the ranks of one process meet for a collective (SEMANTICS 3.10).

    rank 0  --come--> |            |
    rank 2  --come--> | open act   | --> the last one gets all, in axis order, and does the work for all
    rank 1  --come--> |            |

Nobody waits in it: a rank that has come leaves its stream busy and its thread free.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.actors.actor import Actor
from planner.ir.errors import InvalidPlan

__all__ = ["Crew", "Rendezvous"]

Crew = tuple[tuple[Actor, int], ...]
"""(actor, number of its act) per rank, in axis order."""


class Rendezvous:
    """Of one group: the ranks along one axis, for the collectives of one stream."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self._here: dict[int, tuple[Actor, int]] = {}

    def come(self, actor: Actor, number: int) -> Crew | None:
        """This rank is at its turn; the crew, once it is complete.

        Raises:
            InvalidPlan: another act is open: the ranks list their collectives in different orders, on real groups a dead-lock.
        """
        for rank, (other, act) in self._here.items():
            if (other.task.id, act) != (actor.task.id, number):
                raise InvalidPlan(
                    f"rank {actor.rank} came to collective {actor.task.id} (act {number}) while rank {rank} waits in {other.task.id} (act {act}); "
                    f"the ranks of a group need one order of their collectives: plan anew"
                )
        self._here[actor.rank] = actor, number
        if len(self._here) < len(self.ranks):
            return None
        crew = tuple(self._here[rank] for rank in self.ranks)
        self._here = {}
        return crew

    def waiting(self) -> tuple[tuple[Actor, int], ...]:
        """Who has come and waits for the others."""
        return tuple(self._here.values())
