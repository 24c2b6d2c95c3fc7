"""What a simulated Plan comes to, without a Trace: one row per class of equal ranks, so that 1,024 devices cost as much as a few.

    step ends     e0        e1        e2        e3
    rank class  --|---------|=========|---------|            shares are taken between e1 and e2: the fill is over, and the acts that
                              window                          the next step starts early are there

bubble           part of the window in which no compute stream of the rank is at work
communication    part in which a collective or a send of the rank is at work (ranks that wait for each other are not at work)
exposed          part of communication in which the rank does not compute

Peaks are those of the engine; simulator.analysis.peak_contents says what they consist of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from planner.ir.errors import DeadLock, Unsupported
from planner.ir.plan import Plan, StreamKind
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Trace, settled_s
from simulator.analysis.category import Category
from simulator.analysis.peak_contents import PeakContents
from simulator.compiled.arrays import CompiledPlan, Floats, KernelResult
from simulator.compiled.compiler import compile_plan
from simulator.compiled.event_kernel import play_events
from simulator.compiled.results import MOST_FIRINGS, step_ends_s
from simulator.engine import Engine, simulate
from simulator.network.act_flows import contention_of

__all__ = ["RankGroup", "Forecast", "forecast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks that cannot be told apart.  Shares are parts of one step, 0 to 1.

    peak_bytes: live bytes of each at its worst moment.   categories_bytes: what they are for; they add up to peak_bytes; None: not known.
    """

    ranks: tuple[int, ...]
    bubble: float
    communication: float
    exposed: float
    peak_bytes: int
    register_bytes: int
    categories_bytes: Mapping[Category, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Kind ``sim``.  step_ends_s: shape [steps], from the first start.   num_acts: of all ranks.   num_firings: those that were played.

    window_s: begin and end of the step that the shares are parts of.   not_compiled: why AUTO could not take the compiled engine; empty: it did.
    contention: what acts felt of each other, in words; empty: nothing.
    """

    step_ends_s: tuple[float, ...]
    window_s: tuple[float, float]
    num_acts: int
    num_firings: int
    engine: str
    not_compiled: str
    contention: str
    rank_groups: tuple[RankGroup, ...]

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Between the ends of consecutive steps; the first counts from the first start."""
        return tuple(end - before for before, end in pairwise((0.0, *self.step_ends_s)))

    @property
    def step_s(self) -> float:
        """Seconds of a step in the long run, as Trace.settled_step_s."""
        return settled_s(self.step_times_s)

    @property
    def is_settled(self) -> bool:
        """Whether the step of the shares took as long as one in the long run, to a thousandth, and there were two such steps at least."""
        first, last = self.window_s
        return len(self.step_ends_s) > 3 and abs((last - first) - self.step_s) <= 1e-3 * self.step_s

    def mean(self, share: Literal["bubble", "communication", "exposed"]) -> float:
        """Over all devices."""
        values = {"bubble": [a.bubble for a in self.rank_groups], "communication": [a.communication for a in self.rank_groups]}
        values["exposed"] = [a.exposed for a in self.rank_groups]
        sizes = [len(a.ranks) for a in self.rank_groups]
        return sum(value * size for value, size in zip(values[share], sizes, strict=True)) / sum(sizes)


def forecast(plan: Plan, cost: CostModel, *, steps: int = 4, engine: Engine = Engine.AUTO) -> Forecast:
    """Play ``steps`` steps.

    Args:
        plan: a verified Plan.
        cost: seconds per act and message.
        engine: SIMPY plays every rank act by act; otherwise the compiled engine plays one rank of each class.  Acts feel each other as in simulate.

    Raises:
        DeadLock: some act can never start; says which and why.   InvalidPlan: steps < 1.
        Unsupported: more than 2^28 firings, or as simulate with the compiled engine.
    """
    compiled = compile_plan(plan, cost, contention=contention_of(plan, cost))
    firings = steps * int(compiled.tables.acts.sum())
    if firings > MOST_FIRINGS:
        raise Unsupported(f"{steps} steps are {firings} firings, more than {MOST_FIRINGS}; simulate fewer steps")
    if engine is Engine.SIMPY or steps < 1:
        seen = simulate(plan, cost, steps=steps, engine=engine)
        seen_forecast = _forecast_of(compiled, _from_trace(compiled, seen), steps, seen.about["engine"], seen.about.get("not_compiled", ""))
        return replace(seen_forecast, num_firings=len(seen.acts))  # SimPy plays every rank
    played = play_events(compiled.tables, steps, compiled.ranks.num_classes, full=True, flows=compiled.flows)
    if not played.complete:
        simulate(plan, cost, steps=steps, engine=Engine.SIMPY)  # actors as objects can tell who waits for whom; it raises
        raise DeadLock(f"plan {plan.model} is not live (SEMANTICS 4.1); simulate it with engine simpy, which names the cycle")
    return _forecast_of(compiled, played, steps, "compiled")


def _from_trace(compiled: CompiledPlan, trace: Trace) -> KernelResult:
    """The acts of the first rank of each class, as the kernel writes them."""
    base = np.concatenate(([0], np.cumsum(trace.steps * compiled.tables.acts)))
    first = {c: rank for rank, c in reversed(list(enumerate(compiled.ranks.of)))}
    place = {(task.id, first[c]): int(base[a]) for a, (task, c) in enumerate(compiled.actors)}
    ready_s, start_s, end_s = np.zeros((3, int(base[-1])))
    for act in trace.acts:
        at = place.get((act.task, act.rank))
        if at is not None:
            ready_s[at + act.number], start_s[at + act.number], end_s[at + act.number] = act.ready_s, act.start_s, act.end_s
    peaks = [np.array([sizes[str(first[c])] for c in range(len(first))]) for sizes in (trace.peak_bytes, trace.register_bytes)]
    return KernelResult(True, base, ready_s, start_s, end_s, peaks[0] - compiled.state_bytes, peaks[1] - compiled.state_bytes)


def _forecast_of(compiled: CompiledPlan, played: KernelResult, steps: int, engine: str, not_compiled: str = "") -> Forecast:
    acts, ranks = compiled.tables.acts, compiled.ranks
    ends = tuple(step_ends_s(compiled, played, steps).tolist())
    window = (ends[-3], ends[-2]) if steps > 2 else ((0.0, *ends)[-2], ends[-1])
    groups = []
    contents = PeakContents(compiled, played, steps)
    members: list[list[int]] = [[] for _ in range(ranks.num_classes)]
    for rank, c in enumerate(ranks.of):
        members[c].append(rank)
    for c, group in enumerate(members):
        compute = _at_work(compiled, played, c, (StreamKind.COMPUTE,), window)
        moving = _at_work(compiled, played, c, (StreamKind.COLLECTIVE, StreamKind.LINK), window)
        either = _length(np.concatenate((compute, moving)))
        whole, busy = (window[1] - window[0]) or 1.0, _length(compute)
        groups.append(
            RankGroup(
                ranks=tuple(group),
                bubble=max(0.0, 1 - busy / whole),
                communication=_length(moving) / whole,
                exposed=(either - busy) / whole,
                peak_bytes=int(compiled.state_bytes[c] + played.peak_bytes[c]),
                register_bytes=int(compiled.state_bytes[c] + played.register_bytes[c]),
                categories_bytes=contents.at_peak(c),
            )
        )
    copies = np.array([len(ranks.members[task.placement][c]) for task, c in compiled.actors])
    return Forecast(
        step_ends_s=ends,
        window_s=window,
        num_acts=steps * int(copies @ acts),
        num_firings=len(played.end_s),
        engine=engine,
        not_compiled=not_compiled,
        contention=compiled.contention.text if compiled.contention is not None else "",
        rank_groups=tuple(groups),
    )


def _at_work(compiled: CompiledPlan, played: KernelResult, c: int, kinds: Sequence[StreamKind], window: tuple[float, float]) -> Floats:
    """(start, end) of the acts of a class on streams of these kinds, cut to the window; shape [n, 2]."""
    rows = [np.empty((0, 2))]
    for actor, (task, mine) in enumerate(compiled.actors):
        if mine == c and compiled.plan.stream[task.stream].kind in kinds:
            span = slice(played.base[actor], played.base[actor + 1])
            rows.append(np.stack((played.start_s[span], played.end_s[span]), axis=1))
    cut = np.clip(np.concatenate(rows), *window)
    return np.asarray(cut[cut[:, 1] > cut[:, 0]])


def _length(spans: Floats) -> float:
    """Length of the union of intervals, shape [n, 2]."""
    if not len(spans):
        return 0.0
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(np.concatenate((spans[:1, 0], spans[:-1, 1])))
    return float(np.maximum(spans[:, 1] - np.maximum(spans[:, 0], reached), 0.0).sum())
