"""Measuring a Plan at the grain of its actors, on real processes while the peers run.

Sums of per-op times are 12 to 32 % too low, whole fragments within 3 % (measured 2026-11, 2 cores); and a process alone on its host
is faster than one whose neighbours share the memory bus.  So the unit is the act, and all ranks work.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

from torch import Tensor

from backend.acts.act import Batches
from backend.acts.step_inputs import StepNumbers, no_numbers
from backend.launch.processes import perform_in_folder, prepare_checked, run_folder
from backend.measure.overlapped import compute_slowdown
from backend.run_folder.files import Options
from backend.run_folder.merge import Merged, Spans, merge
from planner.ir.actors.actor import Actor, build_actors
from planner.ir.actors.verify import verify
from planner.ir.actors.waits import waits
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan, StreamKind, TaskKind
from planner.ir.traces.trace import Act, Trace

__all__ = ["Profile", "Spread", "overheads", "profile"]

_S = 1e-9
_TRAINING_STEPS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """``n`` durations in seconds.  Trust ``min`` and ``p10``: on a shared host medians move by 10 %."""

    min_s: float
    p10_s: float
    median_s: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        return Spread(min_s=ordered[0], p10_s=ordered[len(ordered) // 10], median_s=ordered[len(ordered) // 2], n=len(ordered))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """``tasks``: task id -> rank -> one act's duration.

    ``rounds``: task id -> per round the mean of its acts, the slowest rank of each: ranks that meet in a collective wait for the slowest of
    them, and the mean of the maximum lies above the maximum of the means.
    ``in_training``: collective -> the same, per step, between the computing of real steps, where caches are cold and peers have just worked.

    ``compute_slowdown``: how many times as long a rank computes while it communicates (backend.measure.overlapped); 1 in mode ``run``.
    ``memory``: rank -> bytes, as backend.worker.registers.Registers.ended and backend.worker.isolated.Isolated name them.

    ``overheads`` (seconds, from a real run; absent where the plan has no such case):
        act_gap        end of an act to the start of the next on the same stream, which was ready before
        dispatch       ready to start on an idle stream
        message_local  end of the last enabling act, on the same rank, to ready
        message_remote the same with the enabling act on another rank
    """

    mode: str
    plan_id: str
    tasks: Mapping[str, Mapping[int, Spread]]
    rounds: Mapping[str, tuple[float, ...]]
    in_training: Mapping[str, tuple[float, ...]]
    overheads: Mapping[str, Spread]
    trace: Trace
    about: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    compute_slowdown: float = 1.0


def profile(
    plan: Plan,
    state: Mapping[str, Tensor],
    batches: Batches,
    *,
    rounds: int = 15,
    warmup: int = 3,
    mode: Literal["isolated", "run"] = "isolated",
    timeout_s: float = 60.0,
    workdir: str | Path | None = None,
    numbers: StepNumbers = no_numbers,
) -> Profile:
    """Durations of every task on every rank.

    Args:
        rounds, warmup: counted and uncounted repeats, interleaved over all tasks.
        mode: ``isolated`` times compute beside the peers' compute, in the order of a step, and communication alone;
            ``run`` takes the durations from real steps, where computing and communicating overlap.

    Raises:
        As backend.run.   Unsupported: another mode.
    """
    if mode not in ("isolated", "run"):
        raise Unsupported(f"profile mode {mode!r} is unknown; use 'isolated' or 'run'")
    verify(plan)
    isolated = mode == "isolated"
    steps = warmup + (_TRAINING_STEPS if isolated else rounds)
    options = Options(
        run_id=uuid.uuid4().hex[:12],
        steps=steps,
        timeout_s=timeout_s,
        keeps_state=False,
        isolated_rounds=rounds if isolated else 0,
        warmup=warmup if isolated else 0,
    )
    with run_folder(workdir, options.run_id) as folder:
        prepare_checked(folder, plan, state, batches, options, numbers)
        perform_in_folder(folder, plan, options)
        merged = merge(plan, folder, options)
    trace = merged.outcome.trace
    durations = _isolated(plan, merged) if isolated else _from_run(plan, trace, warmup)
    tasks: dict[str, dict[int, Spread]] = {}
    for (task, rank), values in durations.items():
        tasks.setdefault(task, {})[rank] = Spread.of(values)
    slowest = {t.id: list(map(max, zip(*(durations[t.id, rank] for rank in plan.ranks_of(t)), strict=False))) for t in plan.tasks}
    per_round = {task.id: 1 if isolated and task.kind.is_communication else task.acts for task in plan.tasks}
    return Profile(
        mode=mode,
        plan_id=plan.plan_id,
        tasks=tasks,
        rounds={task: _means(counted, per_round[task]) for task, counted in slowest.items()},
        in_training=_collectives_in_training(plan, trace, warmup),
        overheads=overheads(plan, trace, skip_steps=1),
        trace=trace,
        about=trace.about,
        memory=merged.outcome.memory,
        compute_slowdown=compute_slowdown(plan, trace, {key: fmean(own) for key, own in durations.items()}, warmup) if isolated else 1.0,
    )


def _means(durations: Sequence[float], size: int) -> tuple[float, ...]:
    """The mean of every ``size`` values after each other; what is left over at the end does not count."""
    return tuple(sum(durations[n : n + size]) / size for n in range(0, len(durations) - size + 1, size))


def _collectives_in_training(plan: Plan, trace: Trace, warmup: int) -> dict[str, tuple[float, ...]]:
    """Collective -> its duration in the real steps after the warm-up, from the last rank's arrival to the last rank's end."""
    ends: dict[tuple[str, int], list[Act]] = {}
    for act in trace.acts:
        if plan.stream[plan.task[act.task].stream].kind is StreamKind.COLLECTIVE and act.number >= warmup * plan.task[act.task].acts:
            ends.setdefault((act.task, act.number), []).append(act)
    durations_of: dict[str, list[float]] = {}
    for (task, _), acts in sorted(ends.items()):
        durations_of.setdefault(task, []).append(max(act.duration_s for act in acts))
    return {task: _means(durations, plan.task[task].acts) for task, durations in durations_of.items()}


def _from_run(plan: Plan, trace: Trace, warmup: int) -> dict[tuple[str, int], list[float]]:
    durations_of: dict[tuple[str, int], list[float]] = {}
    for act in sorted(trace.acts, key=lambda a: a.number):
        if act.number >= warmup * plan.task[act.task].acts:
            durations_of.setdefault((act.task, act.rank), []).append(act.duration_s)
    return durations_of


def _isolated(plan: Plan, merged: Merged) -> dict[tuple[str, int], list[float]]:
    """Collectives count from the last rank's start, transfers until the last arrival of what a sender sent."""
    timings: Mapping[int, Spans] = merged.timings
    durations_of: dict[tuple[str, int], list[float]] = {}
    for task in plan.tasks:
        placement = plan.placement[task.placement]
        for rank in placement.ranks:
            spans = timings[rank][task.id, rank]
            starts = [start for start, _ in spans]
            ends = [end for _, end in spans]
            peers = plan.peers(task, rank)
            if len(peers) > 1:
                starts = [max(timings[other][task.id, other][n][0] for other in peers) for n in range(len(spans))]
            if task.kind is TaskKind.TRANSFER:
                arrivals = [
                    spans_there[task.id, rank] for other, spans_there in timings.items() if other != rank and (task.id, rank) in spans_there
                ]
                ends = [max((arrival[n][1] for arrival in arrivals), default=ends[n]) for n in range(len(spans))]
            durations_of[task.id, rank] = [(end - start) * _S for start, end in zip(starts, ends, strict=True)]
    return durations_of


def overheads(plan: Plan, trace: Trace, skip_steps: int = 1) -> dict[str, Spread]:
    """What lies between acts of a measured trace; see Profile."""
    gaps_of: dict[str, list[float]] = {}
    acts = {(act.task, act.rank, act.number): act for act in trace.acts}
    acts_of_streams: dict[tuple[str, int], list[Act]] = {}
    for act in sorted(trace.acts, key=lambda a: a.start_s):
        acts_of_streams.setdefault((plan.task[act.task].stream, act.rank), []).append(act)
    for (stream, _), of_stream in acts_of_streams.items():
        # A collective's start is its last rank's; the gap before it would count waiting for peers.
        if plan.stream[stream].kind is StreamKind.COLLECTIVE:
            continue
        for before, after in itertools.pairwise(of_stream):
            if after.number < skip_steps * plan.task[after.task].acts:
                continue
            if after.ready_s <= before.end_s:
                gaps_of.setdefault("act_gap", []).append(after.start_s - before.end_s)
            else:
                gaps_of.setdefault("dispatch", []).append(after.start_s - after.ready_s)
    actors, _ = build_actors(plan, trace.steps)
    for act in trace.acts:
        if (
            act.number >= skip_steps * plan.task[act.task].acts
            and (cause := _cause(plan, actors[act.task, act.rank], acts, act)) is not None
        ):
            kind = "message_local" if cause.rank == act.rank else "message_remote"
            gaps_of.setdefault(kind, []).append(act.ready_s - cause.end_s)
    return {kind: Spread.of(values) for kind, values in sorted(gaps_of.items())}


def _cause(plan: Plan, actor: Actor, acts: Mapping[tuple[str, int, int], Act], act: Act) -> Act | None:
    """The act whose end made this one ready: its last producer, the last reader of the block it fills, or its own predecessor."""
    enabling = [(act.task, act.rank, act.number - 1), *((*wait.sender, wait.number) for wait in waits(plan, actor, act.number))]
    return max((acts[key] for key in enabling if key in acts), key=lambda a: a.end_s, default=None)
