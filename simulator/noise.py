"""Stragglers and jitter: a Plan's step time as a distribution instead of one number.

(1) straggler   a compute act on rank r takes 1 / speed(r) times its price                                          -> Noise.speed
(2) jitter      an act takes exp(sigma z - sigma^2 / 2) times its price, z standard normal: median below 1, mean 1   -> Noise.jitter
(3) interval    of the steps' times over many seeded runs, between two quantiles; nothing is fitted to them           -> NoisySteps.interval_s

z is drawn once per act of a compute task on a rank.  An act in which ranks meet or that crosses a link has one z for all its ranks, as its
time is the link's.  z depends on (seed, run, task, rank, act) alone, so the same act is as slow whatever the engine, the quotas or the steps.

Plans whose streams all have an order are played by the max-plus recurrence, others act by act in SimPy; the times are the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import InvalidCluster, InvalidPlan
from planner.ir.plan import Plan, Task
from planner.ir.protocols import CostModel
from simulator.compiled.compiler import compile_plan
from simulator.compiled.recurrence_kernel import play_recurrence
from simulator.compiled.results import check_complete, step_ends_s
from simulator.engine import simulate
from simulator.network.act_flows import contention_of
from simulator.rules.prices import Factor
from simulator.steady.observed_order import is_ordered

__all__ = ["ActFactors", "Noise", "NoisySteps", "simulate_noisy"]

Reals = NDArray[np.float64]
_CHUNK = 256
"""Acts whose z are drawn together."""


class ActFactors(Protocol):
    """What an act takes in a run, over its price: jitter, or loads that are drawn (simulator.routed)."""

    def check(self, plan: Plan) -> None: ...

    def factor(self, plan: Plan, run: int = 0) -> Factor: ...

    def column(self, task: Task, rank: int, num_acts: int, run: int = 0) -> Reals: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """speed: rank -> its speed relative to the prices; 0.5 makes its compute acts take twice as long; 1 where not named.
    jitter: sigma of (2) for compute acts.   link_jitter: for all others.   seed: of all runs.
    """

    speed: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    link_jitter: float = 0.0
    seed: int = 0

    def factor(self, plan: Plan, run: int = 0) -> Factor:
        """(task id, rank, act) -> how many times its price an act of run number ``run`` takes.

        Raises:
            InvalidCluster: a speed that is not positive and finite, of a rank that the plan does not have, or a sigma below 0 or above 2.
        """
        self.check(plan)
        drawn: dict[tuple[str, int, int], Reals] = {}

        def times(task: str, rank: int, act: int) -> float:
            place = self._source(plan.task[task], rank)
            key = task, place, act // _CHUNK
            if key not in drawn:
                drawn[key] = self._chunk(plan.task[task], *key[1:], run)
            slow = self._slowness(plan.task[task], rank)
            return float(drawn[key][act % _CHUNK]) * slow

        return times

    def column(self, task: Task, rank: int, num_acts: int, run: int = 0) -> Reals:
        """The factors of the first ``num_acts`` acts of a task on a rank, shape [num_acts]."""
        place = self._source(task, rank)
        chunks = [self._chunk(task, place, number, run) for number in range(-(-num_acts // _CHUNK))]
        return np.concatenate([*chunks, np.empty(0)])[:num_acts] * self._slowness(task, rank)

    def check(self, plan: Plan) -> None:
        """Raises InvalidCluster: as factor."""
        for rank, speed in self.speed.items():
            if not 0 <= rank < plan.num_ranks:
                raise InvalidCluster(f"noise: rank {rank} is to run at speed {speed}; the plan has ranks 0 .. {plan.num_ranks - 1}")
            if not (math.isfinite(speed) and speed > 0):
                raise InvalidCluster(f"noise: rank {rank} is to run at speed {speed}; speeds are positive, 1 is that of the prices")
        for name, sigma in (("jitter", self.jitter), ("link_jitter", self.link_jitter)):
            if not 0 <= sigma <= 2:
                raise InvalidCluster(f"noise: {name} = {sigma}; sigma of the logarithm is between 0 (none) and 2 (a factor of 7)")

    def _slowness(self, task: Task, rank: int) -> float:
        return 1 / self.speed.get(rank, 1.0) if task.kind.is_compute else 1.0

    def _source(self, task: Task, rank: int) -> int:
        return rank if task.kind.is_compute else -1

    def _chunk(self, task: Task, place: int, number: int, run: int) -> Reals:
        sigma = self.jitter if task.kind.is_compute else self.link_jitter
        if sigma == 0:
            return np.ones(_CHUNK)
        key = hashlib.blake2b(f"{self.seed}/{run}/{place}/{number}/{task.id}".encode(), digest_size=16).digest()
        z = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).standard_normal(_CHUNK)
        return np.asarray(np.exp(sigma * z - sigma * sigma / 2), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisySteps:
    """step_s: shape [runs, steps], seconds from each step's end to the next's, the first from the run's start.  Kind: ``sim``.
    quiet_s: shape [steps], the same without noise.   engine: who played.
    """

    step_s: Reals
    quiet_s: Reals
    engine: Literal["max-plus", "simpy"]

    @property
    def means_s(self) -> Reals:
        """Seconds per step of each run, without its first step (the fill) if there are others; shape [runs]."""
        return np.asarray(self.step_s[:, 1:].mean(axis=1) if self.step_s.shape[1] > 1 else self.step_s[:, 0])

    def interval_s(self, share: float = 0.9) -> tuple[float, float, float]:
        """(low, median, high) seconds per step; ``share`` of the runs lie between low and high.

        Raises:
            InvalidPlan: share is not between 0 and 1, or fewer runs than have a quantile that far out.
        """
        runs = len(self.step_s)
        if not 0 < share < 1:
            raise InvalidPlan(f"share = {share}; it is a part of the runs, between 0 and 1")
        tail = (1 - share) / 2
        if runs * tail < 0.5 - 1e-9:
            raise InvalidPlan(
                f"{runs} runs say nothing about the outer {tail:.3g} of them; ask for at least {math.ceil(0.5 / tail - 1e-9)} runs or a smaller share"
            )
        low, middle, high = np.quantile(self.means_s, [tail, 0.5, 1 - tail])
        return float(low), float(middle), float(high)

    @property
    def slowdown(self) -> float:
        """Median seconds per step over those without noise; infinite where nothing takes time."""
        quiet = float(self.quiet_s[1:].mean() if len(self.quiet_s) > 1 else self.quiet_s[0])
        return float(np.median(self.means_s)) / quiet if quiet > 0 else math.inf


def simulate_noisy(
    plan: Plan, cost: CostModel, noise: ActFactors, *, runs: int = 100, steps: int = 4, on_run: Callable[[int], None] | None = None
) -> NoisySteps:
    """Perform a Plan ``runs`` times, each with its own draws.

    Args:
        plan: a verified Plan.
        cost: seconds per act and message, without noise.
        runs, steps: of each run, at least 1.
        on_run: told how many runs are done.

    Raises:
        InvalidPlan: runs < 1 or steps < 1.   InvalidCluster: see Noise.factor.   DeadLock: see simulate.
    """
    if runs < 1 or steps < 1:
        raise InvalidPlan(f"runs = {runs}, steps = {steps}; both are at least 1")
    noise.check(plan)
    ordered = is_ordered(plan) and contention_of(plan, cost) is None
    play = _recurrence(plan, cost, noise, steps) if ordered else _act_by_act(plan, cost, noise, steps)
    rows = []
    for run in range(runs):
        rows.append(play(run))
        if on_run is not None:
            on_run(run + 1)
    return NoisySteps(step_s=np.stack(rows), quiet_s=play(None), engine="max-plus" if ordered else "simpy")


def _act_by_act(plan: Plan, cost: CostModel, noise: ActFactors, steps: int) -> Callable[[int | None], Reals]:
    def play(run: int | None) -> Reals:
        factor = None if run is None else noise.factor(plan, run)
        return np.array(simulate(plan, cost, steps=steps, factor=factor).step_times_s(plan))

    return play


def _recurrence(plan: Plan, cost: CostModel, noise: ActFactors, steps: int) -> Callable[[int | None], Reals]:
    compiled = compile_plan(plan, cost, fold=False, sizes=False)
    total = steps * compiled.tables.acts
    base = np.concatenate(([0], np.cumsum(total)))
    price_s = np.repeat([compiled.ranks.price_s[task.id, rank] for task, rank in compiled.actors], total)
    meetings = [compiled.tables.group_actor[first:last] for first, last in pairwise(compiled.tables.group_first)]

    def play(run: int | None) -> Reals:
        actors = zip(compiled.actors, total.tolist(), strict=True)
        columns = [np.ones(acts) if run is None else noise.column(*actor, acts, run) for actor, acts in actors]
        act_s = price_s * np.concatenate(columns)
        for members in meetings:  # ranks that meet take as long as the slowest of them
            rows = base[members][:, None] + np.arange(total[members[0]])
            act_s[rows] = act_s[rows].max(axis=0)
        played = play_recurrence(compiled, steps, full=False, act_s=act_s)
        check_complete(compiled, played)
        return np.diff(step_ends_s(compiled, played, steps), prepend=0.0)

    return play
