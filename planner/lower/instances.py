"""Where each value must be, in which layout, and the moves that bring it there.

An *instance* is a value on a stage in a layout.  The native instance is what its producer makes; every other is reached from it by moves:
boxing steps on the sender's mesh (partial values are reduced before they travel), one TRANSFER, boxing steps on the receiver's mesh.
Trailing steps that need no communication are left to the consumer's fragment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.boxing import boxing_path
from planner.cost.analytic import boxing_s
from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.plan import Boxing
from planner.ir.sbp import B, NdSbp, Partial
from planner.ir.tensor import TensorType

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
    """A value on a stage in a layout; ``via`` and ``parent`` say how it got there (None: native)."""

    value: str
    stage: int
    sbp: NdSbp
    parent: Instance | None = field(default=None, compare=False)
    via: Move | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return self.value if self.parent is None else f"{self.value}@{self.sbp}"

    @property
    def root(self) -> Instance:
        return self if self.parent is None else self.parent.root

    @property
    def moves(self) -> tuple[Move, ...]:
        return () if self.parent is None or self.via is None else (*self.parent.moves, self.via)


class Mover:
    """Finds routes; one price list for all of a Plan's boxing."""

    def __init__(self, cluster: Cluster, mesh: tuple[int, ...]) -> None:
        self.cluster, self.mesh = cluster, mesh
        self._stride = [1] * len(mesh)
        for axis in range(len(mesh) - 2, -1, -1):
            self._stride[axis] = self._stride[axis + 1] * mesh[axis + 1]

    def _step_s(self, collective: Collective, total_bytes: float, axis: int) -> float:
        return boxing_s(self.cluster, collective, total_bytes, tuple(i * self._stride[axis] for i in range(self.mesh[axis])))

    def path(self, logical: TensorType, src: NdSbp, dst: NdSbp) -> tuple[Boxing, ...]:
        return boxing_path(logical, self.mesh, src, dst, self._step_s)[0]

    def route(self, logical: TensorType, src_stage: int, src: NdSbp, dst_stage: int, dst: NdSbp) -> Route:
        """The moves from one (stage, layout) to another."""
        if src_stage == dst_stage:
            steps: tuple[Move, ...] = self.path(logical, src, dst)
        else:
            # Nothing partial travels: reduce on the way out, into the layout that is wanted where that is a split.
            landing = NdSbp(tuple(B if isinstance(entry, Partial) else entry for entry in dst.entries))
            leaving = src
            for axis, entry in enumerate(src.entries):
                if isinstance(entry, Partial):
                    reduced = src.replace(axis, landing[axis])
                    leaving = leaving.replace(axis, landing[axis] if reduced.splits_evenly(logical.shape, self.mesh) else B)
            if not leaving.splits_evenly(logical.shape, self.mesh):
                leaving = NdSbp(tuple(B if isinstance(entry, Partial) else entry for entry in src.entries))
            steps = (*self.path(logical, src, leaving), Hop(src_stage, dst_stage, landing), *self.path(logical, landing, dst))
        cut = len(steps)
        while cut and isinstance(last := steps[cut - 1], Boxing) and last.collective is Collective.LOCAL:
            cut -= 1
        return Route(steps[:cut], tuple(step for step in steps[cut:] if isinstance(step, Boxing)))
