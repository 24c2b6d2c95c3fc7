"""From a Plan to times, or to a whole Trace, by the compiled kernels.

times()  arrays only, no Act objects: what a search asks thousands of times.  Fixed orders and constant durations: the recurrence, else the events.
trace()  every act of every rank, and peaks: the event-driven kernel, unfolded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from planner.ir.collector import collector_paused
from planner.ir.errors import DeadLock, InvalidPlan, Unsupported
from planner.ir.traces.trace import Act, Source, Trace
from simulator.compiled.arrays import CompiledPlan, Floats, KernelResult
from simulator.compiled.event_kernel import play_events
from simulator.compiled.recurrence_kernel import play_recurrence

__all__ = ["Times", "check_complete", "peaks", "step_ends_s", "times", "trace"]

MOST_FIRINGS = 2**28
"""2 GB of end times; a longer game says nothing that a shorter one does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When each step of a simulated Plan ended, in seconds from the start of the first.

    num_acts: of all ranks.   num_firings: those that were computed, one per class of equal ranks.   kernel: "recurrence" or "events".
    """

    step_ends_s: tuple[float, ...]
    num_acts: int
    num_firings: int
    kernel: str

    @property
    def makespan_s(self) -> float:
        return self.step_ends_s[-1]

    @property
    def step_s(self) -> float:
        """Seconds per step: the mean over all but the first, which fills the pipeline; of one step alone its own time."""
        ends = self.step_ends_s
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else ends[0]


def times(compiled: CompiledPlan, *, steps: int = 4) -> Times:
    """Ends of ``steps`` steps; equal to the last end of each step in the Trace of any engine.

    Raises:
        InvalidPlan: steps < 1.   DeadLock: some act can never start; ``simulate`` with engine simpy explains it.
        Unsupported: more than 2^28 firings.
    """
    _check_size(compiled, steps)
    if compiled.free or compiled.flows is not None:
        kernel, played = "events", play_events(compiled.tables, steps, compiled.ranks.num_classes, full=False, flows=compiled.flows)
    else:
        kernel, played = "recurrence", play_recurrence(compiled, steps, full=False)
    check_complete(compiled, played)
    acts = compiled.tables.acts
    copies = np.array([len(compiled.ranks.members[task.placement][c]) for task, c in compiled.actors])
    return Times(
        step_ends_s=tuple(step_ends_s(compiled, played, steps).tolist()),
        num_acts=steps * int(copies @ acts),
        num_firings=len(played.end_s),
        kernel=kernel,
    )


def step_ends_s(compiled: CompiledPlan, played: KernelResult, steps: int) -> Floats:
    """When the last act of each step ended, in seconds; shape [steps]."""
    lasts = played.base[:-1] - 1 + np.outer(np.arange(1, steps + 1), compiled.tables.acts)
    return np.asarray(played.end_s[lasts].max(axis=1))


def trace(compiled: CompiledPlan, *, steps: int = 4) -> Trace:
    """The Trace of ``steps`` steps: event for event that of the SimPy engine, but for ``about``.

    Raises:
        InvalidPlan: steps < 1.   DeadLock: as in times.   Unsupported: more than 2^28 firings, or compiled without sizes.
    """
    _check_size(compiled, steps)
    if not compiled.has_sizes:
        raise Unsupported("a trace counts live bytes, and this plan was compiled without sizes; use compile_plan(plan, cost, sizes=True)")
    played = play_events(compiled.tables, steps, compiled.ranks.num_classes, full=True, flows=compiled.flows)
    check_complete(compiled, played)
    ranks, plan = compiled.ranks, compiled.plan
    state = compiled.state_bytes
    peaks, registers = (state + played.peak_bytes).tolist(), (state + played.register_bytes).tolist()
    return Trace(
        source=Source.SIM,
        performer="simulator",
        plan_id=plan.plan_id,
        steps=steps,
        acts=_acts(compiled, played, steps),
        peak_bytes={str(rank): peaks[c] for rank, c in enumerate(ranks.of)},
        register_bytes={str(rank): registers[c] for rank, c in enumerate(ranks.of)},
        about={
            "cost_model": compiled.cost_id,
            "engine": f"compiled, numba {numba.__version__}",
            "simulated_ranks": f"{ranks.num_classes} of {len(ranks.of)}",
            **(compiled.contention.about if compiled.contention is not None else {}),
        },
    )


def peaks(compiled: CompiledPlan, *, steps: int = 2) -> tuple[int, ...]:
    """Peak live bytes of every rank, workspace included, as in the Trace.

    Raises:
        as trace.
    """
    _check_size(compiled, steps)
    played = play_events(compiled.tables, steps, compiled.ranks.num_classes, full=True, flows=compiled.flows)
    check_complete(compiled, played)
    peak_of_class = (compiled.state_bytes + played.peak_bytes).tolist()
    return tuple(peak_of_class[c] for c in compiled.ranks.of)


@collector_paused()
def _acts(compiled: CompiledPlan, played: KernelResult, steps: int) -> tuple[Act, ...]:
    """Every rank's acts by (start, end, place of the actor in the unfolded Plan, number)."""
    plan, ranks = compiled.plan, compiled.ranks
    entries = [
        (place, actor, plan.placement[task.placement].ranks[place])
        for actor, (task, c) in enumerate(compiled.actors)
        for place in ranks.members[task.placement][c]
    ]
    # compiled.actors goes by task, so only the ranks of one task have to be put in the placement's order.
    actor_task = {task.id: number for number, task in enumerate(plan.tasks)}
    entries.sort(key=lambda entry: (actor_task[compiled.actors[entry[1]][0].id], entry[0]))
    actor = np.array([entry[1] for entry in entries])
    total = steps * compiled.tables.acts[actor]
    number = np.arange(total.sum()) - np.repeat(np.cumsum(total) - total, total)
    at = np.repeat(played.base[actor], total) + number
    entry_of = np.repeat(np.arange(len(entries)), total)
    order = np.lexsort((number, entry_of, played.end_s[at], played.start_s[at]))
    at, entry_of = at[order], entry_of[order].tolist()
    names = [compiled.actors[e[1]][0].id for e in entries]
    devices = [e[2] for e in entries]

    def values(column: Floats) -> list[float]:
        return column[at].tolist()  # type: ignore[no-any-return]

    return tuple(
        map(
            Act,
            map(names.__getitem__, entry_of),
            map(devices.__getitem__, entry_of),
            number[order].tolist(),
            values(played.ready_s),
            values(played.start_s),
            values(played.end_s),
        )
    )


def _check_size(compiled: CompiledPlan, steps: int) -> None:
    if steps < 1:
        raise InvalidPlan(f"steps = {steps}; a simulation performs at least 1 step")
    firings = steps * int(compiled.tables.acts.sum())
    if firings > MOST_FIRINGS:
        raise Unsupported(f"{steps} steps are {firings} firings, more than {MOST_FIRINGS}; simulate fewer steps")


def check_complete(compiled: CompiledPlan, played: KernelResult) -> None:
    """Raises DeadLock: not all acts were performed."""
    if not played.complete:
        raise DeadLock(
            f"plan {compiled.plan.model} is not live (SEMANTICS 4.1): not all of its acts can be performed; "
            "the way out: simulate it with engine simpy, which names the cycle and the quota that would break it"
        )
