"""Bounds on a shape's step and bytes from the pieces of the model that its stages share; no layout of the whole model is searched.

With p stages, m micro-batches, pieces k (n_k times), t_k and u_k the seconds of a piece per micro-batch and once per step, h_k its bytes:

    step  =  sum_i t_i + (m - 1) max t_i + max u_i
         >=  (p - 1) T + min over layouts of the first stage [ m t_0 + u_0 ]           T = sum_k n_k min t_k / p                (1)
         >=  sum_k (n_k - w_k) min t_k + sum_k w_k min [ m t_k + u_k + y h_k ] - y M   for every multiplier y >= 0 (s/byte)     (2)
         >=  p T + (m - 1) max over stages of the work that the plan's own cut assigns (whole blocks, and the rest's roofline)  (3)
    bytes of the fullest device
         >=  max over the two times at which a stage is fullest of  sum_k w_k min h_k at that time                              (4)
         >=  sum_k (n_k / p) min h_k  at the end of the backward part, when no micro-batch is in flight                         (5)

where M is the memory of a device and w_k counts what is weighed against it.  (1) holds for every cut, because the slowest stage takes no less
than the mean one.  In (2) and (4) w_k is the number of blocks that the plan's own cut puts whole on the first stage, and h counts the micro-
batches in flight there; where that cut is not known, w_k = n_k / p, the mean over the stages, and h counts one micro-batch in flight, as many as every
stage has.  What a block of the first stage makes for the backward part of others is kept where they are: of a block that another stage reads, h
counts none of it.
(2) is largest at the y at which the cheapest choice that is too large and the cheapest that fits cost the same; a secant search computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from planner.search.bounds.pieces import PieceSearch
from planner.solve.problem import NotFoundInTime

__all__ = ["EqualShare", "ShareChoice"]

_SAME = 1e-9
_MOST = 24


@dataclass(frozen=True, slots=True)
class ShareChoice:
    """A choice of layouts for what is weighed, at a multiplier y.

    cost_s: m t + u.   held_bytes: of a device, each piece at its own peak.   bound_s: the second sum of (2).
    """

    cost_s: float
    held_bytes: float
    bound_s: float


@dataclass(frozen=True)  # no slots, because of the cached properties
class EqualShare:
    """The pieces of a model on the mesh of one stage of ``stages``.

    cut: per stage, how many of each model's blocks lie there, and seconds that the rest there takes at least; empty: not known.
    first: how many of each model's blocks lie whole on the first stage; empty: not known.
    leaving: number of a model -> (how many of these blocks another stage reads, the model without the bytes that are kept where others read them).

    Where the time of the pieces' search ends, its bounds hold and are lower; a choice that was not found raises NotFoundInTime.
    """

    models: Sequence[PieceSearch]
    stages: int
    cut: Sequence[tuple[Sequence[int], float]] = ()
    first: Sequence[int] = ()
    leaving: Mapping[int, tuple[int, PieceSearch]] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Sequence[float]:
        """w_k of each piece."""
        return [float(count) for count in self.first] or [model.times / self.stages for model in self.models]

    @property
    def weighed(self) -> Sequence[tuple[PieceSearch, float]]:
        """The pieces of which w_k is above 0, with it; those that another stage reads by themselves."""
        parts = list(zip(self.models, self.weights, strict=True))
        for number, (count, model) in self.leaving.items():
            parts[number] = (self.models[number], self.weights[number] - count)
            parts.append((model, float(count)))
        return [(model, weight) for model, weight in parts if weight]

    def cheapest_at(self, s_per_byte: float = 0.0) -> ShareChoice:
        """The cheapest choice if every byte costs ``s_per_byte``."""
        cost_s = held = bound_s = 0.0
        for model, weight in self.weighed:
            piece = model.best(s_per_byte)
            cost_s += weight * piece.cost_s
            held += weight * piece.held_bytes
            bound_s += weight * piece.bound_s
        return ShareChoice(cost_s, held, bound_s)

    @cached_property
    def unlimited_s(self) -> float:
        """(1): a lower bound on the step without a limit on memory, in seconds."""
        return max(self._mean_s, self.uneven_cut_s)

    @property
    def unlimited_stage(self) -> int | None:
        """The stage whose work gave (1) or (3), the larger of them; None: their mean."""
        return None if self._mean_s >= self.uneven_cut_s else max(range(self.stages), key=self._cut_s.__getitem__)

    @cached_property
    def _mean_s(self) -> float:
        """(1)."""
        return self.fill_s + sum(model.unlimited_s * model.times for model in self.models) / self.stages

    @cached_property
    def cheapest(self) -> ShareChoice:
        """The cheapest choice without a limit on memory."""
        return self.cheapest_at()

    @cached_property
    def smallest(self) -> ShareChoice:
        """A choice that holds few bytes; no bound: it holds least over both times together, and its pieces need not be fullest at one time."""
        parts = [(model.smallest, w) for model, w in self.weighed]
        return ShareChoice(sum(w * p.cost_s for p, w in parts), sum(w * p.held_bytes for p, w in parts), 0.0)

    @cached_property
    def least_bytes(self) -> float:
        """(4), (5): the fullest device of no plan of the shape holds less."""
        mean = sum(model.times * model.least_bytes[1] for model in self.models) / self.stages  # after the backward part, of every cut
        first = (sum(weight * model.least_bytes[time] for model, weight in self.weighed) for time in (0, 1))
        return max(mean, *first)

    @cached_property
    def uneven_cut_s(self) -> float:
        """(3): a lower bound from the slowest stage, in seconds; large if the blocks do not divide equally among the stages, or the head is slow."""
        if self.stages == 1 or not self.cut:
            return 0.0
        once_s = sum(model.least_micro_s * model.times for model in self.models)
        return once_s + (self.models[0].micro_batches - 1) * max(self._cut_s)

    @cached_property
    def _cut_s(self) -> Sequence[float]:
        """Per stage of the cut, what it takes at least for a micro-batch."""
        return [sum(n * model.least_micro_s for n, model in zip(blocks, self.models, strict=True)) + rest_s for blocks, rest_s in self.cut]

    @cached_property
    def elsewhere_s(self) -> float:
        """The first sum of (2): what is not weighed takes its time for one micro-batch at least."""
        rest = [(model, model.times - weight) for model, weight in zip(self.models, self.weights, strict=True)]
        return sum(count * model.least_micro_s for model, count in rest if count)

    @cached_property
    def fill_s(self) -> float:
        """(p - 1) T: the time in which the pipeline fills and drains."""
        if self.stages == 1:
            return 0.0
        return (self.stages - 1) * sum(model.least_micro_s * model.times / self.stages for model in self.models)

    def bound_at(self, s_per_byte: float, memory_bytes: float) -> float:
        """(2) at one multiplier, in seconds."""
        return self.elsewhere_s + self.cheapest_at(s_per_byte).bound_s - s_per_byte * memory_bytes

    def bound_within(self, memory_bytes: float, *, only_bound: bool = False) -> tuple[float, float]:
        """A lower bound on the step within a device's memory: (seconds, the Lagrange multiplier of memory that gave it).

        Args:
            only_bound: search no multiplier where none can raise the bound.
        """
        large, small = self.cheapest, self.smallest
        best, multiplier = self.cheapest.bound_s, 0.0
        if large.held_bytes <= memory_bytes:
            return max(self.elsewhere_s + best, self.unlimited_s), multiplier
        for _ in range(_MOST):
            if small.held_bytes >= large.held_bytes or small.cost_s <= large.cost_s:
                break
            y = (small.cost_s - large.cost_s) / (large.held_bytes - small.held_bytes)
            line = large.cost_s + y * (large.held_bytes - memory_bytes)  # the Lagrangian of both choices at y: no multiplier gives more
            if only_bound and self.elsewhere_s + line <= self.unlimited_s:
                break
            try:
                choice = self.cheapest_at(y)
            except NotFoundInTime:
                break  # the bound so far is valid
            value = choice.bound_s - y * memory_bytes
            if value > best:
                best, multiplier = value, y
            if value >= line - _SAME * abs(line):
                break
            if choice.held_bytes > memory_bytes:
                large = choice
            else:
                small = choice
        return max(self.elsewhere_s + best, self.unlimited_s), multiplier
