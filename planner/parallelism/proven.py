"""What searches have proven of the plans of shapes, for a search of the same program on another network:

(1) step  >=  s (bound there)  +  (1 - s) (sum_i c_i + (m - 1) c_b)
(2) where nothing takes longer than on the earlier one, a kind of bound that was too low there is too low, and is not worked out

with s the share of its time there that what travels takes at least (planner.cost.networks), and c_i what stage i computes at least, as long on both.
(1): a bound is one on  sum_i t_i + (m - 1) t_b + u_c  for some stages b and c, or the mean stage, and so at most the step; and t_i >= s t'_i +
(1 - s) c_i, u_i >= s u'_i.  Where b is not known, it is the stage that computes least.

Attention is left out of c_i: around a ring it computes while others send, so that its time is no sum of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from planner.cost.networks import least_share
from planner.ir.cluster import Cluster
from planner.parallelism.shape import Shape

__all__ = ["BoundKind", "Proof", "ProvenBound", "ProvenShapes", "proven_on"]


class BoundKind(IntEnum):
    """The bound by which a shape stands in the queue: (1), (7), (6), (2) or (3) of planner.parallelism.bounds, of its first and last stage
    (planner.search.bounds.end_stages), or of its whole model, ever slower."""

    ROOFLINE = 1
    FORWARD_PART = 2
    LARGEST_PIECE = 3
    UNLIMITED = 4
    WITHIN_MEMORY = 5
    END_STAGES = 6
    WHOLE_MODEL = 7


class Proof(NamedTuple):
    """A lower bound, and the last sum of (1) for what it bounds, in seconds."""

    bound_s: float = 0.0
    computed_s: float = 0.0

    def at(self, share: float) -> Proof:
        """(1)."""
        return Proof(share * self.bound_s + (1 - share) * self.computed_s, self.computed_s)


_NOTHING = Proof()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenBound:
    """What is proven of one shape.

    fitting: of every plan that fits.   all_plans: of every plan, whether it fits or not.
    by_kind: what the kinds of bounds gave that were worked out, in seconds.   next_after: the kind after which closer ones are to be worked out.
    memory_binds: the layouts of a search without limit do not fit.
    too_large_bytes: what the fullest device of every plan holds at least, where that is more than devices have; 0: it may fit.
    s_per_byte: the multiplier of memory that gave the bound within memory; 0: none was needed, or it is not known.
    """

    fitting: Proof = _NOTHING
    all_plans: Proof = _NOTHING
    by_kind: Mapping[BoundKind, float] = field(default_factory=dict)
    next_after: BoundKind = BoundKind.ROOFLINE
    memory_binds: bool = False
    too_large_bytes: float = 0.0
    s_per_byte: float = 0.0

    @property
    def needs_recompute(self) -> bool:
        """Whether the shape's plans with recomputation are to be searched, since memory binds and what is proven is of plans that fit."""
        return self.memory_binds and (self.fitting.bound_s > self.all_plans.bound_s or self.next_after is BoundKind.WITHIN_MEMORY)

    def with_bound(self, kind: BoundKind, proof: Proof, memory_binds: bool = False) -> ProvenBound:
        """The same with one more bound; up to kind UNLIMITED it holds for every plan, from there on for plans that fit."""
        return replace(
            self,
            fitting=max(self.fitting, proof),
            all_plans=max(self.all_plans, proof) if kind <= BoundKind.UNLIMITED else self.all_plans,
            by_kind={**self.by_kind, kind: max(proof.bound_s, self.by_kind.get(kind, 0.0))},
            memory_binds=memory_binds if kind >= BoundKind.WITHIN_MEMORY else self.memory_binds,
        )

    def and_also(self, other: ProvenBound) -> ProvenBound:
        """Both, of one shape on one network."""
        return ProvenBound(
            fitting=max(self.fitting, other.fitting),
            all_plans=max(self.all_plans, other.all_plans),
            by_kind={**self.by_kind, **other.by_kind},
            next_after=max(self.next_after, other.next_after),
            memory_binds=self.memory_binds or other.memory_binds,
            too_large_bytes=max(self.too_large_bytes, other.too_large_bytes),
            s_per_byte=other.s_per_byte or self.s_per_byte,
        )

    def elsewhere(self, share: float, other_share: float, enough_s: float) -> ProvenBound:
        """(1) and (2): what it says of another network.

        Args:
            share: what travels takes at least so many times as long there as here.   other_share: and here as there.
            enough_s: the bound that dismissed a shape here.
        """
        kind = BoundKind.ROOFLINE
        if other_share == 1:
            while kind < BoundKind.WITHIN_MEMORY and self.by_kind.get(BoundKind(kind + 1), enough_s) < enough_s:
                kind = BoundKind(kind + 1)
        elif share == 1:  # the closest kind may give more
            kind = BoundKind(max([*self.by_kind, BoundKind.FORWARD_PART]) - 1)
        return replace(self, fitting=self.fitting.at(share), all_plans=self.all_plans.at(share), by_kind={}, next_after=self._at_most(kind))

    def _at_most(self, kind: BoundKind) -> BoundKind:
        """Where memory did not bind, it may with other layouts, so that is asked again; what is closer than within memory is for who has a plan."""
        return min(kind, BoundKind.WITHIN_MEMORY if self.memory_binds else BoundKind.UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenShapes:
    """What one search has left.

    asked: all on which it depends beside the cluster.   best: the shape of its plan.   enough_s: the bound that dismissed a shape.
    """

    asked: object
    cluster: Cluster
    best: Shape
    enough_s: float
    bounds: Mapping[Shape, ProvenBound]


def proven_on(cluster: Cluster, searches: Iterable[ProvenShapes]) -> dict[Shape, ProvenBound]:
    """What searches of the same have proven that holds on this cluster, too."""
    proven: dict[Shape, ProvenBound] = {}
    for search in searches:
        share, other_share = least_share(cluster, search.cluster), least_share(search.cluster, cluster)
        for shape, bound in search.bounds.items() if share else ():
            found = bound.elsewhere(share, other_share, search.enough_s)
            proven[shape] = found if shape not in proven else proven[shape].and_also(found)
    return proven
