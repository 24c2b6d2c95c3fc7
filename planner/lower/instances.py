"""Where each value must be, in which layout, and the moves that bring it there.

An *instance* is a value on a stage in a layout.  The native instance is what its producer makes; every other is reached from it by moves:
boxing steps on the sender's mesh (partial values are reduced before they travel), one TRANSFER, boxing steps on the receiver's mesh.
Trailing steps that need no communication are left to the consumer's fragment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp
from planner.ir.tensor import TensorType
from planner.search import Prices

__all__ = ["Hop", "Instance", "Mover", "Route"]


@dataclass(frozen=True, slots=True)
class Hop:
    """A TRANSFER to another stage that lands in layout ``dst``."""

    src_stage: int
    dst_stage: int
    dst: NdSbp


Move = Boxing | Hop


@dataclass(frozen=True, slots=True)
class Route:
    """moves: need communication, each its own task;  local: boxing steps inside the consumer's fragment."""

    moves: tuple[Move, ...]
    local: tuple[Boxing, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A value on a stage in a layout; ``via`` and ``parent`` say how it got there (None: native).

    turn: which part of which block it is there for, if it is brought anew for each of them (ZeRO-3); else empty.
    """

    value: str
    stage: int
    sbp: NdSbp
    parent: Instance | None = field(default=None, compare=False)
    via: Move | None = field(default=None, compare=False)
    turn: str = ""

    @property
    def name(self) -> str:
        return self.value if self.parent is None else f"{self.value}@{self.sbp}"

    @property
    def root(self) -> Instance:
        return self if self.parent is None else self.parent.root

    @property
    def moves(self) -> tuple[Move, ...]:
        return () if self.parent is None or self.via is None else (*self.parent.moves, self.via)


_FREE_S = 1e-8
"""More than the hairs that break ties between steps without communication add up to."""


class Mover:
    """Finds routes; the prices are the search's."""

    def __init__(self, cluster: Cluster, mesh: tuple[int, ...]) -> None:
        self.prices = Prices(cluster, mesh)

    def route(self, logical: TensorType, src_stage: int, src: NdSbp, dst_stage: int, dst: NdSbp, shared: NdSbp) -> Route:
        """The moves from one (stage, layout) to another.

        shared: the layout in which several readers on ``dst_stage`` share the value; the way leads through it unless the direct one is as cheap.
        """
        if src_stage != dst_stage:
            leaving, landing = self.prices.ends_of_hop(logical, src, shared)
            hop: tuple[Move, ...] = (*self.prices.path(logical, src, leaving), Hop(src_stage, dst_stage, landing))
            steps = (*hop, *self.prices.path(logical, landing, shared), *self.prices.path(logical, shared, dst))
        elif dst == shared or self.prices.boxing_s(logical, src, dst) <= self.prices.boxing_s(logical, shared, dst) + _FREE_S:
            steps = self.prices.path(logical, src, dst)
        else:
            steps = (*self.prices.path(logical, src, shared), *self.prices.path(logical, shared, dst))
        cut = len(steps)
        while cut and isinstance(last := steps[cut - 1], Boxing) and last.collective is Collective.LOCAL:
            cut -= 1
        return Route(steps[:cut], tuple(step for step in steps[cut:] if isinstance(step, Boxing)))
