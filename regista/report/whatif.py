"""What if: the same Plan with other quotas, links or devices, simulated with the durations of the simulated trace.

The trace holds the predicted duration of every act and message, so no cost table is needed; the first row simulates the Plan as it is and equals
the prediction.  A duration is scaled as a whole: "links twice as fast" halves latencies, too.  So the rows are upper bounds on what a change of
hardware brings; 'regista whatif' plans anew for a changed cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from planner.ir.errors import DeadLock, Unsupported
from planner.ir.plan import Plan, RegstKind, Task
from planner.ir.traces.trace import Trace
from planner.ir.units import show_bytes
from simulator import simulate

__all__ = ["Change", "TracePrices", "what_if_changes"]

MOST_ACTS = 1_000_000
"""Acts of the simulation of one row; a larger Plan gets no table, because nine such simulations take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row (kind: sim).   step_s: Trace.settled_step_s; None: the changed Plan cannot be performed, ``why_not`` says why.
    register_bytes: blocks that held data at once, state included, on the fullest rank.
    """

    what: str
    step_s: float | None
    register_bytes: int | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class TracePrices:
    """A CostModel from a trace: the median duration of the acts of every task on every rank.

    factor: task -> the factor of its durations.
    """

    id: str
    act_times_s: Mapping[tuple[str, int], float]
    messages_s: Mapping[str, float]
    factor: Callable[[Task], float] = lambda _: 1.0

    @classmethod
    def of(cls, trace: Trace, factor: Callable[[Task], float] = lambda _: 1.0) -> TracePrices:
        times: dict[tuple[str, int], list[float]] = defaultdict(list)
        for act in trace.acts:
            times[act.task, act.rank].append(act.duration_s)
        medians = {key: median(values) for key, values in times.items()}
        return cls(id=f"trace-{trace.source.value}-{trace.plan_id}", act_times_s=medians, messages_s=trace.message_s, factor=factor)

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return self.act_times_s[task.id, rank] * self.factor(task)

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return self.messages_s.get(f"{src_rank}->{dst_rank}", 0.0)


def what_if_changes(plan: Plan, sim: Trace, run: Trace | None = None) -> tuple[Change, ...]:
    """The rows of the table, the Plan as it is first.

    Args:
        sim: a simulated trace of the Plan, without noise.
        run: a measured trace; a last row has its durations, so that errors of durations and errors of order and waiting are told apart.
    """
    steps = sim.steps
    own = TracePrices.of(sim)
    blocks = {r.id: r.quota for r in plan.regsts if r.kind is RegstKind.DATA and r.producer is not None}
    rows = [_played("as it is", plan, own, steps)]
    rows.append(_played("one block of every regst", plan.with_quotas(dict.fromkeys(blocks, 1)), own, steps))
    rows.append(_played("one block more of every regst", plan.with_quotas({r: q + 1 for r, q in blocks.items()}), own, steps))
    rows.append(
        _played("quotas of two whole steps", plan.with_quotas({r: q + 2 * plan.micro_batches for r, q in blocks.items()}), own, steps)
    )
    if any(task.kind.is_communication for task in plan.tasks):
        rows.append(_played("links twice as fast", plan, TracePrices.of(sim, _links(0.5)), steps))
        rows.append(_played("links half as fast", plan, TracePrices.of(sim, _links(2.0)), steps))
        rows.append(_played("links without cost", plan, TracePrices.of(sim, _links(0.0)), steps))
    rows.append(_played("devices twice as fast", plan, TracePrices.of(sim, lambda task: 0.5 if task.kind.is_compute else 1.0), steps))
    if run is not None:
        measured = TracePrices(id="run", act_times_s=TracePrices.of(run).act_times_s, messages_s=sim.message_s)
        rows.append(_played("every act as long as measured (median)", plan, measured, steps))
    return tuple(rows)


def _links(factor: float) -> Callable[[Task], float]:
    return lambda task: factor if task.kind.is_communication else 1.0


def _played(what: str, plan: Plan, prices: TracePrices, steps: int) -> Change:
    try:
        trace = simulate(plan, prices, steps=steps, max_acts=MOST_ACTS)
    except (DeadLock, Unsupported) as error:
        return Change(what=what, step_s=None, register_bytes=None, why_not=f"{type(error).__name__}: {error}")
    peak_bytes, limit_bytes = max(trace.peak_bytes.values(), default=0), plan.cluster.device.memory_bytes
    if peak_bytes > limit_bytes:
        why_not = f"does not fit: {show_bytes(peak_bytes)} are live on the fullest device, which has {show_bytes(limit_bytes)}"
        return Change(what=what, step_s=None, register_bytes=None, why_not=why_not)
    return Change(what=what, step_s=trace.settled_step_s(plan), register_bytes=max(trace.register_bytes.values(), default=0))
