"""What an equal share of the model costs a device, from its pieces: bounds on a shape's step before any layout of the whole is searched.

With p stages, m micro-batches, pieces k (times n_k), t_k and u_k the seconds of a piece per micro-batch and once per step, h_k what it holds:

    step  =  sum_i t_i + (m - 1) max t_i + max u_i
         >=  (p - 1) T + min over layouts of the first stage [ m t_0 + u_0 ]           T = sum_k n_k min t_k / p                (1)
         >=  (p - 1) T + sum_k (n_k / p) min [ m t_k + u_k + y h_k ] - y M             for every price y >= 0 of a byte         (2)
         >=  p T + (m - 1) max over stages of what the plan's own cut puts there       (whole blocks, and the rest's roofline)  (3)

where M is the memory that a device has, h counts the micro-batches in flight on the first stage, and the stages are equal, as the plan's own
cut aims at.  (2) is largest where the two cheapest choices, one too large and one that fits, cost the same: a secant search finds that y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.search.bounds.pieces import PieceSearch
from planner.solve.problem import NotFoundInTime

__all__ = ["EqualShare", "ShareChoice"]

_SAME = 1e-9
_MOST = 24


@dataclass(frozen=True, slots=True)
class ShareChoice:
    """A device of a stage that holds an equal share, at a price of bytes.

    cost_s: m t + u.   held_bytes: what the choice holds.   bound_s: (2) without (p - 1) T and without the memory that there is.
    """

    cost_s: float
    held_bytes: float
    bound_s: float


@dataclass(frozen=True)  # no slots: what was worked out is kept
class EqualShare:
    """The pieces of a model on the mesh of one stage of ``stages``.

    cut: per stage, how many of each model's blocks lie there, and seconds that the rest there takes at least.

    Where the time of the pieces' search ends, its bounds hold and are lower; a choice that was not found raises NotFoundInTime.
    """

    models: Sequence[PieceSearch]
    stages: int
    cut: Sequence[tuple[Sequence[int], float]] = ()

    def cheapest_at(self, s_per_byte: float = 0.0) -> ShareChoice:
        """The cheapest choice at a price per byte."""
        cost_s = held = bound_s = 0.0
        for model in self.models:
            price, weight = model.best(s_per_byte), model.times / self.stages
            cost_s += weight * price.cost_s
            held += weight * price.held_bytes
            bound_s += weight * price.bound_s
        return ShareChoice(cost_s, held, bound_s)

    @cached_property
    def unlimited_s(self) -> float:
        """(1): a lower bound on the step without a limit on memory, in seconds."""
        return max(self.fill_s + sum(model.unlimited_s * model.times for model in self.models) / self.stages, self.uneven_cut_s)

    @cached_property
    def cheapest(self) -> ShareChoice:
        """The cheapest choice without a limit on memory."""
        return self.cheapest_at()

    @cached_property
    def smallest(self) -> ShareChoice:
        """The choice that holds the fewest bytes."""
        parts = [(model.smallest, model.times / self.stages) for model in self.models]
        return ShareChoice(sum(w * p.cost_s for p, w in parts), sum(w * p.held_bytes for p, w in parts), 0.0)

    @cached_property
    def uneven_cut_s(self) -> float:
        """(3): blocks that do not divide among the stages, or the head, make one of them slow."""
        if self.stages == 1:
            return 0.0
        once_s = sum(model.least_micro_s * model.times for model in self.models)
        slow_s = max(
            (sum(n * model.least_micro_s for n, model in zip(blocks, self.models, strict=True)) + rest_s for blocks, rest_s in self.cut),
            default=0.0,
        )
        return once_s + (self.models[0].micro_batches - 1) * slow_s

    @cached_property
    def fill_s(self) -> float:
        """(p - 1) T: the time in which the pipeline fills and drains."""
        if self.stages == 1:
            return 0.0
        return (self.stages - 1) * sum(model.least_micro_s * model.times / self.stages for model in self.models)

    def bound_within(self, memory_bytes: float) -> tuple[float, float]:
        """(bound on the step in seconds, the price per byte behind it) where a device has ``memory_bytes``; the smallest choice fits in it."""
        large, small = self.cheapest, self.smallest
        best, price = self.cheapest.bound_s, 0.0
        if large.held_bytes <= memory_bytes:
            return max(self.fill_s + best, self.uneven_cut_s), price
        for _ in range(_MOST):
            y = (small.cost_s - large.cost_s) / (large.held_bytes - small.held_bytes)
            if y <= 0:
                break
            try:
                choice = self.cheapest_at(y)
            except NotFoundInTime:
                break  # the bound at the prices so far holds
            value = choice.bound_s - y * memory_bytes
            if value > best:
                best, price = value, y
            line = large.cost_s + y * (large.held_bytes - memory_bytes)  # what both ends cost at y
            if value >= line - _SAME * abs(line):
                break
            if choice.held_bytes > memory_bytes:
                large = choice
            else:
                small = choice
        return max(self.fill_s + best, self.uneven_cut_s), price
