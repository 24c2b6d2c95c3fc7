"""Best-first search over shapes.

Every shape stands in a queue by a lower bound on its plans.  The one with the least bound gets a closer bound (planner.parallelism.bounds) or,
if it has the closest, is worked out in full, until the least bound in the queue is no better than the best plan.  Once there is a plan, a shape is
bounded by its whole model before it is worked out.

A shape of which no plan that was tried fits tells that others may not fit either: while there is no plan, shapes whose devices get as many samples
at once are put off.

When the time limit of the bounds is up, no further bound is computed.  If no shape has been worked out by then, one is, and the search ends: of
those that were bounded within memory, or of all where there is none, the one with the least bound.  Once there is a plan, no shape is worked out in
less time than the longest one took; the search ends instead.

A shape that could be better than the best one by less than the share ``gap`` is not worked out; the bound over all shapes shows how much that
may cost.
What earlier searches of the same have proven of a shape is its first bound, and the best shape of the last one is worked out first
(planner.parallelism.proven).
To find the runner-up, the search goes on until the least bound in the queue is no better than the second best step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from planner.ir.errors import InvalidProgram, OutOfMemory, Unsupported
from planner.parallelism.bounding import Ahead, BoundKind, Closer, Entry, WholeBounds
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.proven import Proof, ProvenBound
from planner.parallelism.shape import Shape, with_next
from planner.solve.problem import NotFoundInTime
from planner.stages.recompute.asked import BLOCKS

__all__ = ["RunnerUp", "ShapeSearch", "ShapeWatch"]

ShapeWatch = Callable[[str, float, float], None]
"""(shape, best step so far in seconds, bound in seconds)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The best of the shapes other than the best one.

    shape, step_s: the best that was worked out in full, and its step in seconds; None: none was.
    least_s: a lower bound in seconds on every plan of another shape (kind ``theory``); infinite: no other shape can be planned.
    """

    shape: Shape | None
    step_s: float | None
    least_s: float


@dataclass(slots=True)
class ShapeSearch:
    """Best-first search over shapes.

    work_out: (shape, whether memory binds) -> the step of its best plan in seconds, and a lower bound on it;
        raises OutOfMemory if it does not fit.
    before: called with a shape before it is worked out, and before the second process goes on with others; returns whether that bounds the shape's
        end stages meanwhile.
    recompute: a shape that does not fit is tried with these, in turn.
    bound_whole: rising lower bounds on a shape's plans from its end stages, and from its whole model, which take a third of the time of working it
        out; asked for once there are as many plans as are wanted, until one dismisses the shape.   None: not asked for.
    gap: a shape that could be better by at most this share of the best step is not worked out.
    given_up: shape -> its bound in seconds, of shapes of which no plan that was tried fits, which does not prove that none does; the bound over all
        shapes leaves them out.
    known: what is known of shapes before they are bounded; it grows.   first: is worked out before all others, where it may fit.
    """

    bounds: ShapeBounds
    work_out: Callable[[Shape, bool], tuple[float, float]]
    recompute: Sequence[str] = ()
    gap: float = 0.0
    bound_whole: WholeBounds | None = None
    on_progress: ShapeWatch | None = None
    before: Callable[[Shape], bool] = lambda _: True
    ahead: Callable[[ShapeBounds, WholeBounds, Sequence[Shape]], Ahead] = Ahead
    given_up: dict[Shape, float] = field(default_factory=dict)
    known: dict[Shape, ProvenBound] = field(default_factory=dict)
    first: Shape | None = None
    _ahead: Ahead = field(init=False)
    _queue: list[Entry] = field(default_factory=list)
    _entered: set[Shape] = field(default_factory=set)
    _refused: list[Exception] = field(default_factory=list)
    _worked: dict[Shape, tuple[float, float]] = field(default_factory=dict)
    """Shape -> (its step, its bound), in the order in which they were worked out."""
    _undecided_s: list[float] = field(default_factory=list)
    """Bounds of shapes of which no plan was found in time."""
    _put_off: list[Entry] = field(default_factory=list)
    """Shapes that wait for the first plan."""
    _longest_s: float = 0.0
    """What working out a shape took at most."""
    _all_unfit: bool = False
    """Only shapes that were put off were left, without a plan: none is put off any more."""

    def best(self, candidates: Sequence[Shape]) -> tuple[Shape, float]:
        """(the best shape, lower bound over all shapes in seconds); when the time is up, or when interrupted, the best so far.

        Raises:
            OutOfMemory: no shape fits.   Unsupported, InvalidProgram: no shape can be planned.
            KeyboardInterrupt: before any shape was worked out.
        """
        self._begin(candidates, 1)
        best = self._ranked()[0]
        return best, self._bound_s(best)

    def two_best(self, candidates: Sequence[Shape]) -> tuple[Shape, float, RunnerUp]:
        """As ``best``, and the second best shape: shapes are worked out until no other can be better than it by more than ``gap``.

        Raises:
            OutOfMemory, Unsupported, InvalidProgram, KeyboardInterrupt: as ``best``.
        """
        self._begin(candidates, 2)
        best, *others = self._ranked()
        bounds = [self._worked[shape][1] for shape in others] + self._open_s()
        if not others:
            return best, self._bound_s(best), RunnerUp(shape=None, step_s=None, least_s=min(bounds, default=inf))
        step_s = self._worked[others[0]][0]
        return best, self._bound_s(best), RunnerUp(shape=others[0], step_s=step_s, least_s=min(step_s, *bounds))

    def _begin(self, candidates: Sequence[Shape], places: int) -> None:
        """Find the best of the candidates, or raise, and then, unless interrupted, those of the next places."""
        every = [replace(shape, recompute=recompute) for shape in candidates for recompute in (shape.recompute, *self.recompute)]
        self._ahead = self.ahead(self.bounds, self.bound_whole or _no_bounds, every)
        for shape in candidates:
            self._enter(self.bounds.roofline_s(shape), shape)
        try:
            for place in range(1, places + 1):
                is_whole = self._work_until(place)
                if not self._worked:
                    raise next((e for e in reversed(self._refused) if isinstance(e, OutOfMemory)), self._refused[-1])
                if not is_whole:
                    break
        finally:
            self._ahead.close()

    def _ranked(self) -> list[Shape]:
        """The shapes that were worked out, the best first; of equal ones, the one that was worked out first."""
        return sorted(self._worked, key=lambda shape: self._worked[shape][0])

    def _limit_s(self, place: int) -> float:
        """The step of the shape in that place; place 1 is the best one's."""
        steps = sorted(step_s for step_s, _ in self._worked.values())
        return steps[place - 1] if len(steps) >= place else inf

    def _bound_s(self, best: Shape) -> float:
        """A lower bound over all shapes but those that cannot be planned."""
        bounds = [bound_s for _, bound_s in self._worked.values()] + self._open_s()
        return min(self._worked[best][0], *bounds)

    def _open_s(self) -> list[float]:
        """Lower bounds for the shapes without a known plan: the least of the queue, and those of shapes of which none was found in time."""
        return [self._open_least_s(), *self._undecided_s]

    def _open_least_s(self) -> float:
        """The least bound of the queue and of the shapes that were put off; infinite: there is none."""
        return min((least_s for least_s, *_ in self._queue[:1] + self._put_off), default=inf)

    def _work_until(self, place: int) -> bool:
        """Take shapes from the queue until none can be better than the one in that place by more than ``gap``; False: interrupted."""
        while self._least_is_open(place):
            left_s = self.bounds.time_limit.remaining_s()
            is_up = left_s <= 0
            if is_up and self._worked:
                break
            if self.bounds.time_limit.is_cancelled:
                raise NotFoundInTime("the search was cancelled before a shape was worked out", self._open_least_s())
            if not is_up:
                self._ahead.start(self._queue, bound_whole=self._may_dismiss(place))
            least_s, shape, bound_kind, memory_binds = entry = self._take(is_up)
            is_first, self.first = shape == self.first, None
            is_closest = (
                is_first or bound_kind is BoundKind.WHOLE_MODEL or (bound_kind is BoundKind.WITHIN_MEMORY and not self._may_dismiss(place))
            )
            if is_closest and self._worked and left_s < self._longest_s:
                heapq.heappush(self._queue, entry)
                break
            if (is_up or is_closest) and self._may_not_fit(shape):
                self._put_off.append(entry)
                continue
            try:
                if is_up or is_closest:
                    self._work_out(least_s, shape, memory_binds)
                else:
                    self._bound(least_s, shape, bound_kind, memory_binds, self._limit_s(place) * (1 - self.gap))
            except KeyboardInterrupt:
                if not self._worked:
                    raise
                heapq.heappush(self._queue, entry)
                return False
            except OutOfMemory as error:
                self._refuse(shape, error)
            except (InvalidProgram, Unsupported) as error:
                self._refuse_by(error)
            if self.on_progress is not None:
                step_s = self._limit_s(1)
                self.on_progress(str(shape), step_s, min(step_s, self._open_least_s()))
        return True

    def _take(self, is_up: bool) -> Entry:
        """Remove the entry of the first shape, or that of least bound; once the time is up, of those bounded within memory, if any."""
        closest = [entry for entry in self._queue if (entry[2] >= BoundKind.WITHIN_MEMORY if is_up else entry[1] == self.first)]
        if not closest:
            return heapq.heappop(self._queue)
        entry = min(closest)
        self._queue.remove(entry)
        heapq.heapify(self._queue)
        return entry

    def _least_is_open(self, place: int) -> bool:
        """Whether the queue's least bound is better than the step of that place by more than ``gap``.

        Shapes that were put off come back into the queue before, once there is a plan or nothing else is left.
        """
        if self._put_off and (self._worked or not self._queue):
            for entry in self._put_off:
                heapq.heappush(self._queue, entry)
            self._put_off.clear()
            self._all_unfit = not self._worked
        return bool(self._queue) and self._queue[0][0] < self._limit_s(place) * (1 - self.gap)

    def _may_not_fit(self, shape: Shape) -> bool:
        """Whether to put a shape off: there is no plan, and one whose devices hold as few or fewer samples per micro-batch did not fit."""
        if self._worked or self._all_unfit:
            return False
        return self._samples_at_once(shape) >= min(map(self._samples_at_once, self.given_up), default=inf)

    def _samples_at_once(self, shape: Shape) -> float:
        return self.bounds.batch_size / shape.micro_batches / prod(shape.mesh)

    def _may_dismiss(self, place: int) -> bool:
        """Whether a bound of the whole model may spare working a shape out."""
        return self.bound_whole is not None and self._limit_s(place) < inf

    def _work_out(self, least_s: float, shape: Shape, memory_binds: bool) -> None:
        began_s = self.bounds.time_limit.elapsed_s()
        if not self.bounds.time_limit.is_up():
            bound_ends = self.before(shape)
            self._ahead.start(self._queue, renewed=True, bound_whole=self.bound_whole is not None, without=shape, bound_ends=bound_ends)
        try:
            step_s, bound_s = self.work_out(shape, memory_binds)
        except NotFoundInTime:
            self._undecided_s.append(least_s)
            raise
        except OutOfMemory:
            self.given_up[shape] = least_s
            raise
        finally:
            self._longest_s = max(self._longest_s, self.bounds.time_limit.elapsed_s() - began_s)
        self._worked[shape] = step_s, max(bound_s, least_s)
        proof = Proof(bound_s, self.bounds.computed_s(shape, range(shape.stages)))
        self.known[shape] = self.known[shape].with_bound(BoundKind.WHOLE_MODEL, proof, memory_binds)

    def _enter(self, least_s: float, shape: Shape) -> None:
        """Put a shape into the queue, unless it has been there or its lower bound on memory exceeds the device's."""
        if shape in self._entered:
            return
        self._entered.add(shape)
        entered = ProvenBound(fitting=Proof(least_s), all_plans=Proof(least_s))
        self.known[shape] = known = entered.and_also(self.known.get(shape, entered))
        memory, floor = self.bounds.cluster.device.memory_bytes, max(self.bounds.floor_bytes(shape), known.too_large_bytes)
        if floor > memory:
            self._refuse(shape, self._too_large(shape, floor))
            return
        heapq.heappush(self._queue, (known.fitting.bound_s, shape, known.next_after, known.memory_binds))
        if known.needs_recompute:
            self._with_recompute(shape)

    def _refuse_by(self, error: Exception) -> None:
        """Keep what a refusal says, without the frames that raised it: they hold the search, and only the collector would free the circle."""
        self._refused.append(error.with_traceback(None))

    def _refuse(self, shape: Shape, error: OutOfMemory) -> None:
        self._refuse_by(error)
        self._with_recompute(shape)

    def _too_large(self, shape: Shape, least: float) -> OutOfMemory:
        memory = self.bounds.cluster.device.memory_bytes
        return OutOfMemory(
            f"no shape fits: {shape} needs at least {least / 1e9:.3g} GB per device, {self.bounds.cluster.name} has {memory / 1e9:.3g} GB; "
            f"take more devices, larger ones, or smaller micro-batches"
        )

    def _with_recompute(self, shape: Shape) -> None:
        """The same shape with the next of what is recomputed, of which the first that fits is searched.

        A plan without its recomputed ops is one of the shape without recomputation, which may not fit, so that shape's bound of every plan holds;
        one with a share is none of the shape with another share.
        """
        recomputed, least_s = with_next(shape, self.recompute), 0.0 if shape.recompute else self.known[shape].all_plans.bound_s
        if recomputed is None:
            return
        try:
            roofline_s = self.bounds.roofline_s(recomputed)
        except Unsupported as error:  # so little cannot be kept
            if recomputed.recompute == BLOCKS:
                raise
            self._refuse_by(error)
            self._with_recompute(recomputed)
            return
        self._enter(max(least_s, roofline_s), recomputed)

    def _bound(self, least_s: float, shape: Shape, bound_kind: BoundKind, memory_binds: bool, enough_s: float) -> None:
        """Put a shape back into the queue by its next bound."""
        found, found_s = Closer(bound_s=0.0, memory_binds=memory_binds), 0.0
        for found in self._ahead.closer(shape, bound_kind, memory_binds):
            found_s = max(found_s, found.bound_s)
            if found_s >= enough_s:
                break
        closer_kind, bound_s = BoundKind(bound_kind + 1), max(least_s, found_s)
        self.known[shape] = self.known[shape].with_bound(closer_kind, Proof(found_s, found.computed_s), found.memory_binds)
        if found.s_per_byte:
            self.known[shape] = replace(self.known[shape], s_per_byte=found.s_per_byte)
        if found.too_large_bytes:
            self.known[shape] = replace(self.known[shape], too_large_bytes=found.too_large_bytes)
            raise self._too_large(shape, found.too_large_bytes)
        heapq.heappush(self._queue, (bound_s, shape, closer_kind, found.memory_binds))
        self._ahead.tell(shape, closer_kind, replace(found, bound_s=bound_s))
        if bound_kind is BoundKind.UNLIMITED and found.memory_binds:
            self._with_recompute(shape)


def _no_bounds(_shape: Shape, _memory_binds: bool, _kind: BoundKind) -> Iterator[float]:
    return iter(())
