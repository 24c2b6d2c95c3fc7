"""Traces: what a performer did, when.  Simulated and measured ones have one schema, so that they can be laid over each other.

Laws of a trace (SEMANTICS 5), checked by check_trace:
 (1) each task acts as often as the Plan says          (4) live blocks never exceed the quota
 (2) no two acts overlap on one stream of a rank       (5) live bytes never exceed the device
 (3) a consumer starts after its producers' act ended  (6) every id stands in the Plan
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from planner.ir.actors.actor import build_actors
from planner.ir.actors.verify import device_bytes
from planner.ir.display import Displayed
from planner.ir.errors import InvalidTrace
from planner.ir.plan import Plan

__all__ = ["Act", "Source", "Trace", "check_trace", "settled_s", "stated_slack_s", "steps_text"]


class Source(Enum):
    """What kind of numbers these are; they never share a column."""

    SIM = "sim"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Act:
    """One act.  ``number`` counts the task's acts from 0 over the whole run; times in seconds from the trace's zero.

    ready_s: when its inputs were readable and its blocks free (before waiting for the stream).
    """

    task: str
    rank: int
    number: int
    ready_s: float
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class Trace(Displayed):
    """Peaks per rank.  ``register_bytes``: blocks that held data, state included; both kinds of trace count it the same way.
    ``peak_bytes``: sim: the same and the workspace of the running fragment; run: registers and state, as workspace is not seen.
    ``message_s``: sim: how long a message from rank 0 to rank 1 travels, under ``"0->1"``; what is not there takes no time (run: not seen).
    ``held_steps``: (first, end) of the steps whose acts it holds, ascending; empty: all.  Losses are those of all steps.
    """

    source: Source
    performer: str
    plan_id: str
    steps: int
    acts: tuple[Act, ...]
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    register_bytes: Mapping[str, int] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    message_s: Mapping[str, float] = field(default_factory=dict)
    held_steps: tuple[tuple[int, int], ...] = field(default=(), metadata={"omitted": True})

    def step_ends_s(self, plan: Plan) -> tuple[float, ...]:
        """When the last act of each step ended.

        Raises:
            InvalidTrace: it does not hold all steps.
        """
        if self.held_steps:
            raise InvalidTrace(
                f"the trace holds steps {steps_text(self.held_steps)} of {self.steps}, and this needs all; "
                "take regista.consecutive(plan, trace), or run without trace_steps"
            )
        ends = [0.0] * self.steps
        for act in self.acts:
            step = act.number // plan.task[act.task].acts
            ends[step] = max(ends[step], act.end_s)
        return tuple(ends)

    def step_times_s(self, plan: Plan) -> tuple[float, ...]:
        """Time between the ends of consecutive steps; the first counts from the trace's first start."""
        ends = self.step_ends_s(plan)
        begin = min((act.start_s for act in self.acts), default=0.0)
        return tuple(end - before for before, end in zip((begin, *ends), ends, strict=False))

    def settled_step_s(self, plan: Plan) -> float:
        """A step's time in the long run: the median without the first step, which fills the pipeline, and the last, which nothing follows.

        With fewer than three steps: the last one's.
        """
        return settled_s(self.step_times_s(plan))


def steps_text(spans: Sequence[tuple[int, int]]) -> str:
    """``0 to 19, 999, 1999 ...``: the first five runs of consecutive steps and the last."""
    names = [f"{first} to {end - 1}" if end - first > 1 else str(first) for first, end in spans]
    return ", ".join(names if len(names) <= 6 else [*names[:5], "...", names[-1]])


def settled_s(times_s: Sequence[float]) -> float:
    """Trace.settled_step_s, from the times of consecutive steps in seconds (at least one)."""
    return median(times_s[1:-1]) if len(times_s) > 2 else times_s[-1]


MOST_SLACK_S = 0.1


def stated_slack_s(trace: Trace) -> float:
    """How far the clocks of a measured trace may be apart, as it says of itself: 0 on one host and for simulations.

    Raises:
        InvalidTrace: it says nothing sensible, or so much that the laws would mean nothing.
    """
    said = trace.about.get("clock_slack_s", "0")
    try:
        slack_s = float(said)
    except ValueError:
        slack_s = math.nan
    if not 0 <= slack_s <= MOST_SLACK_S or (slack_s > 0 and trace.source is not Source.RUN):
        raise InvalidTrace(
            f"clock_slack_s is {said!r}; it is a number from 0 to {MOST_SLACK_S:g}, and above 0 only for runs on several hosts"
        )
    return slack_s


def check_trace(plan: Plan, trace: Trace, *, slack_s: float | None = None) -> None:
    """Prove the six laws for one trace.

    Args:
        slack_s: clock resolution granted; None: what the trace says of itself (``stated_slack_s``).

    Raises:
        InvalidTrace: with the law's number and the acts that break it.
    """
    slack_s = stated_slack_s(trace) if slack_s is None else slack_s
    if trace.plan_id != plan.plan_id:
        raise InvalidTrace(f"law 6: the trace is of plan {trace.plan_id}, not of {plan.plan_id}")
    if trace.steps < 1:
        raise InvalidTrace(f"law 1: the trace has {trace.steps} steps; at least 1 was performed")
    spans = trace.held_steps or ((0, trace.steps),)
    if [0, *(step for span in spans for step in span), trace.steps] != sorted(step for span in (*spans, (0, trace.steps)) for step in span):
        raise InvalidTrace(
            f"law 1: the trace says that it holds steps {list(spans)[:4]}; they are ascending and within its {trace.steps} steps"
        )
    ranks = {str(rank) for rank in range(plan.num_ranks)}
    if not set(trace.peak_bytes) <= ranks:
        raise InvalidTrace(f"law 6: peak bytes of ranks {sorted(set(trace.peak_bytes) - ranks)[:8]}; the plan has {plan.num_ranks} ranks")
    for pair, travel_s in trace.message_s.items():
        ends = pair.split("->")
        if len(ends) != 2 or not set(ends) <= ranks or not (math.isfinite(travel_s) and travel_s >= 0):
            raise InvalidTrace(f"law 6: a message {pair!r} travels {travel_s} s; pairs are 'rank->rank' of the plan, times finite and >= 0")
    of_actor: dict[tuple[str, int], list[Act]] = defaultdict(list)
    for act in trace.acts:
        if act.task not in plan.task or act.rank not in plan.ranks_of(plan.task[act.task]):
            raise InvalidTrace(f"law 6: act of {act.task} on rank {act.rank}, which the plan does not have")
        if not (math.isfinite(act.ready_s) and math.isfinite(act.start_s) and math.isfinite(act.end_s)):
            raise InvalidTrace(f"law 6: act {act.number} of {act.task} on rank {act.rank} has no finite times")
        if act.end_s < act.start_s:
            raise InvalidTrace(f"law 6: act {act.number} of {act.task} on rank {act.rank} ends before it starts")
        of_actor[act.task, act.rank].append(act)
    by_actor: dict[tuple[str, int], dict[int, Act]] = {}
    for task in plan.tasks:
        for rank in plan.ranks_of(task):
            acts = {act.number: act for act in of_actor[task.id, rank]}
            by_actor[task.id, rank] = acts
            count = len(of_actor[task.id, rank])
            want = sum(end - first for first, end in spans) * task.acts
            if count != want or any(number not in acts for first, end in spans for number in range(first * task.acts, end * task.acts)):
                held = f"the {want // task.acts} steps that it holds" if trace.held_steps else f"{trace.steps} steps"
                raise InvalidTrace(f"law 1: {task.id} on rank {rank} acted {count} times in {held}; the plan says {want}")
    _check_streams(plan, trace, slack_s)
    _check_blocks(plan, trace, spans, by_actor, slack_s)
    limit = plan.cluster.device.memory_bytes
    for name, peak in trace.peak_bytes.items():
        if peak > limit:
            raise InvalidTrace(f"law 5: rank {name} held {peak} bytes; its device has {limit}")
    if trace.source is Source.SIM:
        planned = device_bytes(plan)
        for name, peak in trace.peak_bytes.items():
            if peak > planned[int(name)]:
                raise InvalidTrace(f"law 5: rank {name} held {peak} bytes, more than the {planned[int(name)]} that the plan reserves")


def _check_streams(plan: Plan, trace: Trace, slack_s: float) -> None:
    acts_of_streams: dict[tuple[str, int], list[Act]] = defaultdict(list)
    for act in trace.acts:
        acts_of_streams[plan.task[act.task].stream, act.rank].append(act)
    for (stream, rank), acts in acts_of_streams.items():
        acts.sort(key=lambda a: (a.start_s, a.end_s))
        for before, after in zip(acts, acts[1:], strict=False):
            if after.start_s < before.end_s - slack_s:
                raise InvalidTrace(
                    f"law 2: {after.task} act {after.number} starts at {after.start_s:.9f} s on {stream} of rank {rank}, "
                    f"while {before.task} act {before.number} runs until {before.end_s:.9f} s"
                )


def _check_blocks(
    plan: Plan,
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    by_actor: Mapping[tuple[str, int], Mapping[int, Act]],
    slack_s: float,
) -> None:
    """Laws 3 and 4 between acts that the trace holds."""
    actors, _ = build_actors(plan, trace.steps)
    for (task, rank), actor in actors.items():
        for port in actor.outputs.values():
            made, per_step = by_actor[task, rank], actor.task.acts // port.acts_per_block
            full = port.produced
            for sink in port.acked:
                used = by_actor[sink]
                reader = actors[sink].inputs[port.regst]
                for block in (block for first, end in spans for block in range(first * per_step, end * per_step)):
                    first, last = made[block * port.acts_per_block], made[(block + 1) * port.acts_per_block - 1]
                    # Block n of the producer is block n + full of the reader: a state Regst starts with one.
                    start = used.get((block + full) * reader.acts_per_block)
                    if start is not None and start.start_s < last.end_s - slack_s:
                        raise InvalidTrace(
                            f"law 3: {sink[0]} act {start.number} on rank {sink[1]} starts at {start.start_s:.9f} s, before "
                            f"{task} act {last.number} ended at {last.end_s:.9f} s (regst {port.regst})"
                        )
                    freed = block + full - port.quota
                    release = used.get((freed + 1) * reader.acts_per_block - 1)
                    if release is not None and first.start_s < release.end_s - slack_s:
                        raise InvalidTrace(
                            f"law 4: {task} act {first.number} on rank {rank} starts at {first.start_s:.9f} s, while all {port.quota} blocks "
                            f"of {port.regst} are held ({sink[0]} act {release.number} ends at {release.end_s:.9f} s)"
                        )
