"""Instances of values, and the moves that lead to them.

An *instance* is a value on a stage in a layout.  The producer makes the native instance; every other follows from it by the moves that the search
has chosen (planner.search.routes): boxing steps on the sender's mesh (partial values are reduced before they are sent), one transfer, boxing
steps on the receiver's mesh.  Each move is a task of its own, except final steps without communication, which the reader's fragment performs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.ir.collective import Collective
from planner.ir.graph import Role
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp
from planner.lower.names import name_in_layout
from planner.search.routes import Move

__all__ = ["Arrival", "Instance", "UnshardScope", "arrival"]


@dataclass(frozen=True, slots=True)
class UnshardScope:
    """The part of a step for which a parameter is unsharded (ZeRO-3): the forward or the backward part of one unit.

    unit: a numbered block, or a module outside of blocks (planner.stages.blocks.unshard_unit).
    """

    role: Role
    unit: str


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A value on a stage in a layout.  The move ``via`` makes it from the instance ``parent``; both are None for the native instance.

    Compared by identity: Drafts.instance and Drafts.follow make one of each.

    scope: the scope of a copy of a parameter that is unsharded per unit; None: the copy serves all readers.
    """

    value: str
    stage: int
    sbp: NdSbp
    parent: Instance | None = None
    via: Move | None = None
    scope: UnshardScope | None = None

    @property
    def name(self) -> str:
        return self.value if self.parent is None else name_in_layout(self.value, self.sbp)

    @property
    def root(self) -> Instance:
        """The native instance."""
        return self if self.parent is None else self.parent.root

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves from the native instance to this one."""
        return () if self.parent is None or self.via is None else (*self.parent.moves, self.via)


class Arrival(NamedTuple):
    """The moves from a native instance to a reader.  moves: tasks of their own;  local: boxing steps in the reader's fragment."""

    moves: tuple[Move, ...]
    local: tuple[Boxing, ...]


def arrival(route: Sequence[Move]) -> Arrival:
    """A route of the search, divided into tasks and the final steps without communication, which the reader performs."""
    cut = len(route)
    while cut and isinstance(last := route[cut - 1], Boxing) and last.collective is Collective.LOCAL:
        cut -= 1
    return Arrival(tuple(route[:cut]), tuple(step for step in route[cut:] if isinstance(step, Boxing)))
