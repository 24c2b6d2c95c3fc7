"""A simulated trace beside a measured one of the same Plan.

step time       sim: in the long run (settled_step_s)  run: median of the steps after the warm-up, with p10 and p90
kinds           busy seconds per step, on the rank where that kind is busiest
actors          median seconds per act, over ranks and acts
relative error  predicted / measured - 1:  -0.05 says that the prediction is 5 % too fast
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from planner.ir.display import Displayed
from planner.ir.errors import Mismatch
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Source, Trace
from regista.analysis.statistics import quantile

__all__ = ["Comparison", "Pair", "Summary", "compare", "default_warmup", "summarise"]

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same quantity, simulated and measured."""

    predicted: float
    measured: float

    @property
    def relative_error(self) -> float | None:
        """predicted / measured - 1; None where nothing was measured."""
        if self.measured:
            return self.predicted / self.measured - 1
        return None if self.predicted else 0.0

    def to_json(self) -> dict[str, object]:
        return {"predicted": self.predicted, "measured": self.measured, "relative_error": self.relative_error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """10th and 90th percentile of the measured steps, in seconds, and how many there were."""

    p10: float
    p90: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Displayed):
    """See the module's text.  Units: seconds, samples per second, bytes."""

    plan_id: str
    model: str
    warmup_steps: int
    step_time_s: Pair
    spread: Spread
    throughput_per_s: Pair
    kinds: Mapping[str, Pair]
    actors: Mapping[str, Pair]
    register_bytes: Mapping[str, Pair]

    def to_json(self) -> dict[str, object]:
        """Plain JSON data; ``predicted`` is always sim, ``measured`` always run."""
        spread = {"p10": self.spread.p10, "p90": self.spread.p90, "measured_steps": self.spread.steps}
        return {
            "plan_id": self.plan_id,
            "model": self.model,
            "warmup_steps": self.warmup_steps,
            "step_time_s": self.step_time_s.to_json() | spread,
            "throughput_per_s": self.throughput_per_s.to_json(),
            "kinds": {kind: pair.to_json() for kind, pair in self.kinds.items()},
            "actors": {task: pair.to_json() for task, pair in self.actors.items()},
            "register_bytes": {rank: pair.to_json() for rank, pair in self.register_bytes.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One trace in a few numbers.

    busy: stream id -> rank -> busy seconds of the steady steps' acts / duration of those steps (0 to 1).
    """

    source: Source
    performer: str
    steps: int
    warmup_steps: int
    step_time_s: float
    throughput_per_s: float
    peak_bytes: Mapping[str, int]
    busy: Mapping[str, Mapping[int, float]]


def default_warmup(trace: Trace) -> int:
    """Steps to leave out: all but the last of a simulation; of a run the first 3 or a quarter, and at least 1 of more than 2."""
    if trace.source is Source.SIM:
        return trace.steps - 1
    return max(min(3, trace.steps // 4), 1 if trace.steps > 2 else 0)


def compare(plan: Plan, sim: Trace, run: Trace, *, warmup: int | None = None) -> Comparison:
    """Lay a simulation beside a run.

    Args:
        warmup: steps of the run to leave out; None: see default_warmup.

    Raises:
        Mismatch: the traces are of another plan, not (SIM, RUN) in this order, or the warm-up leaves no step.
    """
    _same_plan(plan, (sim, run))
    if (sim.source, run.source) != (Source.SIM, Source.RUN):
        raise Mismatch(
            f"compare wants a simulated and a measured trace, in this order; got '{sim.source.value}' and '{run.source.value}'; "
            "give the file of 'simulate' first and the file of 'run' second"
        )
    leave_out = _warmup(run, warmup)
    steady, measured = _window(plan, sim, default_warmup(sim)), _window(plan, run, leave_out)
    times = run.step_times_s(plan)[leave_out:]
    step = Pair(predicted=sim.settled_step_s(plan), measured=median(times))
    busy = _busy_per_kind(plan, steady), _busy_per_kind(plan, measured)
    acts = _act_medians(steady), _act_medians(measured)
    return Comparison(
        plan_id=plan.plan_id,
        model=plan.model,
        warmup_steps=leave_out,
        step_time_s=step,
        spread=Spread(p10=quantile(times, 0.1), p90=quantile(times, 0.9), steps=len(times)),
        throughput_per_s=Pair(predicted=_rate(plan, step.predicted), measured=_rate(plan, step.measured)),
        kinds={kind: Pair(predicted=busy[0].get(kind, 0.0), measured=busy[1].get(kind, 0.0)) for kind in _kinds(plan)},
        actors={t.id: Pair(predicted=acts[0].get(t.id, 0.0), measured=acts[1].get(t.id, 0.0)) for t in plan.tasks},
        register_bytes={
            r: Pair(predicted=n, measured=run.register_bytes[r]) for r, n in sim.register_bytes.items() if r in run.register_bytes
        },
    )


def summarise(plan: Plan, trace: Trace, *, warmup: int | None = None) -> Summary:
    """One trace in a few numbers, over its steady window.

    Raises:
        Mismatch: the trace is of another plan, or the warm-up leaves no step.
    """
    _same_plan(plan, (trace,))
    leave_out = _warmup(trace, warmup)
    times = trace.step_times_s(plan)[leave_out:]
    step_s = trace.settled_step_s(plan) if trace.source is Source.SIM and warmup is None else median(times)
    busy: dict[str, dict[int, float]] = {s.id: dict.fromkeys(plan.placement[s.placement].ranks, 0.0) for s in plan.streams}
    # The acts of these steps, not of this window: what was prefetched before the window is work of its steps all the same.
    for acts in _window(plan, trace, leave_out).values():
        for act in acts:
            busy[plan.task[act.task].stream][act.rank] += act.duration_s
    total_s = sum(times)
    shares = {stream: {rank: min(1.0, t / total_s) if total_s else 0.0 for rank, t in ranks.items()} for stream, ranks in busy.items()}
    return Summary(
        source=trace.source,
        performer=trace.performer,
        steps=trace.steps,
        warmup_steps=leave_out,
        step_time_s=step_s,
        throughput_per_s=_rate(plan, step_s),
        peak_bytes=trace.peak_bytes,
        busy=shares,
    )


def _same_plan(plan: Plan, traces: Iterable[Trace]) -> None:
    for trace in traces:
        if trace.plan_id != plan.plan_id:
            raise Mismatch(f"the {trace.source.value} trace is of plan {trace.plan_id}, not of {plan.plan_id} ({plan.model}); make it anew")


def _warmup(trace: Trace, wanted: int | None) -> int:
    warmup = default_warmup(trace) if wanted is None else wanted
    if not 0 <= warmup < trace.steps:
        raise Mismatch(f"a warm-up of {warmup} steps leaves nothing of a trace of {trace.steps} steps; leave out fewer or run longer")
    return warmup


def _window(plan: Plan, trace: Trace, first: int) -> dict[int, list[Act]]:
    """Step -> its acts, for the steps from ``first`` on."""
    steps: dict[int, list[Act]] = {step: [] for step in range(first, trace.steps)}
    for act in trace.acts:
        step = act.number // plan.task[act.task].acts
        if step >= first:
            steps[step].append(act)
    return steps


def _kinds(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(task.kind.value for task in plan.tasks))


def _busy_per_kind(plan: Plan, steps: Mapping[int, Sequence[Act]]) -> dict[str, float]:
    """Kind -> busy seconds per step (median over the steps) of its busiest rank."""
    busy: dict[tuple[str, int], dict[int, float]] = defaultdict(lambda: dict.fromkeys(steps, 0.0))
    for step, acts in steps.items():
        for act in acts:
            busy[plan.task[act.task].kind.value, act.rank][step] += act.duration_s
    busiest_s: dict[str, float] = {}
    for (kind, _), per_step in busy.items():
        busiest_s[kind] = max(busiest_s.get(kind, 0.0), median(per_step.values()))
    return busiest_s


def _act_medians(steps: Mapping[int, Sequence[Act]]) -> dict[str, float]:
    durations: dict[str, list[float]] = defaultdict(list)
    for acts in steps.values():
        for act in acts:
            durations[act.task].append(act.duration_s)
    return {task: median(values) for task, values in durations.items()}


def _rate(plan: Plan, step_s: float) -> float:
    return plan.batch_size / step_s if step_s > 0 else 0.0
