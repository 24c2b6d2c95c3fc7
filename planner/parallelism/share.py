"""Bounds on a shape's step from the pieces of the model, if each stage has an equal share of them; no layout of the whole model is searched.

With p stages, m micro-batches, pieces k (n_k times), t_k and u_k the seconds of a piece per micro-batch and once per step, h_k its bytes:

    step  =  sum_i t_i + (m - 1) max t_i + max u_i
         >=  (p - 1) T + min over layouts of the first stage [ m t_0 + u_0 ]           T = sum_k n_k min t_k / p                (1)
         >=  (p - 1) T + sum_k (n_k / p) min [ m t_k + u_k + y h_k ] - y M             for every multiplier y >= 0 (s/byte)     (2)
         >=  p T + (m - 1) max over stages of the work that the plan's own cut assigns (whole blocks, and the rest's roofline)  (3)

where M is the memory of a device, h counts the micro-batches in flight on the first stage, and the stages are equal, as the plan's own cut
intends.  (2) is largest at the y at which the cheapest choice that is too large and the cheapest that fits cost the same; a secant search
computes it.
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
    """A choice of layouts for an equal share of the model, at a multiplier y.

    cost_s: m t + u.   held_bytes: of a device.   bound_s: the sum of (2), without (p - 1) T and y M.
    """

    cost_s: float
    held_bytes: float
    bound_s: float


@dataclass(frozen=True)  # no slots, because of the cached properties
class EqualShare:
    """The pieces of a model on the mesh of one stage of ``stages``.

    cut: per stage, how many of each model's blocks lie there, and seconds that the rest there takes at least.

    Where the time of the pieces' search ends, its bounds hold and are lower; a choice that was not found raises NotFoundInTime.
    """

    models: Sequence[PieceSearch]
    stages: int
    cut: Sequence[tuple[Sequence[int], float]] = ()

    def cheapest_at(self, s_per_byte: float = 0.0) -> ShareChoice:
        """The cheapest choice if every byte costs ``s_per_byte``."""
        cost_s = held = bound_s = 0.0
        for model in self.models:
            piece, weight = model.best(s_per_byte), model.times / self.stages
            cost_s += weight * piece.cost_s
            held += weight * piece.held_bytes
            bound_s += weight * piece.bound_s
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
        """(3): a lower bound from the slowest stage, in seconds; large if the blocks do not divide equally among the stages, or the head is slow."""
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
        """(bound on the step in seconds, the multiplier that gave it) if a device has ``memory_bytes``, into which the smallest choice must fit."""
        large, small = self.cheapest, self.smallest
        best, multiplier = self.cheapest.bound_s, 0.0
        if large.held_bytes <= memory_bytes:
            return max(self.fill_s + best, self.uneven_cut_s), multiplier
        for _ in range(_MOST):
            y = (small.cost_s - large.cost_s) / (large.held_bytes - small.held_bytes)
            if y <= 0:
                break
            try:
                choice = self.cheapest_at(y)
            except NotFoundInTime:
                break  # the bound so far is valid
            value = choice.bound_s - y * memory_bytes
            if value > best:
                best, multiplier = value, y
            line = large.cost_s + y * (large.held_bytes - memory_bytes)  # the Lagrangian of both choices at y
            if value >= line - _SAME * abs(line):
                break
            if choice.held_bytes > memory_bytes:
                large = choice
            else:
                small = choice
        return max(self.fill_s + best, self.uneven_cut_s), multiplier
