"""A pipeline schedule inside a Plan: the order of each compute stream, and the quotas that this order needs.

The tasks of one pass of one stage (F, B, I or W of planner.schedule) are consecutive, in topological order; the schedule orders the passes.  A task
that acts once per step comes before the first pass or, if it needs the result of a pass, after the last:

    order of s0.compute    F(0)   F(0)   I(0)          W(0)   F(0)   ...                update
                           fwd.0  fwd.0  bwd.0 bwd.1   wgt.0  fwd.0                     upd.0

1F1B and GPipe have no such order: it follows from quotas alone (SEMANTICS 3.8).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from planner.ir.plan import Plan, Regst, RegstKind, StreamKind, Task, TaskKind
from planner.lower.drafts import Drafts
from planner.lower.names import compute_stream
from planner.lower.orders.passes import StagePass, acts_per_step, passes_of
from planner.schedule import PipelineSchedule, Schedule
from planner.schedule.actions import Pass
from planner.schedule.automatic import zb_auto
from planner.schedule.classic import interleaved
from planner.schedule.greedy import MemoryLimit
from planner.schedule.timing import PassTimes
from planner.schedule.zero_bubble import zb_h1, zb_h2

__all__ = ["PassOrder", "pass_order"]


@dataclass(frozen=True)
class PassOrder:
    """pass_of: task -> its pass, of tasks that act per micro-batch.   before, after: compute stream -> tasks that act once per step.

    on_compute: compute task -> its stream.
    """

    schedule: PipelineSchedule
    pass_of: Mapping[str, StagePass]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]
    on_compute: Mapping[str, str]

    @cached_property
    def streams(self) -> Mapping[str, tuple[str, ...]]:
        """Compute stream -> its order of one step."""
        members: dict[StagePass, list[str]] = defaultdict(list)
        for task, stage_pass in self.pass_of.items():
            if task in self.on_compute:
                members[stage_pass].append(task)
        orders = {}
        for device, order in enumerate(self.schedule.orders):
            stream = compute_stream(device).id
            passes = tuple(task for action in order for kind in _parts(action.kind) for task in members[kind, action.stage])
            orders[stream] = (*self.before.get(stream, ()), *passes, *self.after.get(stream, ()))
        return orders

    @cached_property
    def place(self) -> Mapping[tuple[Pass, int, int], int]:
        """(pass, stage, micro-batch) -> its place in the order of its device."""
        return {(k, a.stage, a.micro_batch): n for order in self.schedule.orders for n, a in enumerate(order) for k in _parts(a.kind)}

    def blocks(self, producer: Task, consumers: Sequence[Task], siblings: Sequence[Task]) -> int:
        """The quota of a Regst that is filled once per micro-batch: the blocks in use at once in the order, so that no pass waits for a block.

        A Regst that another stream fills has one block more; if another stream fills or reads it, it has at least two, so that communication and
        computing overlap.

        Args:
            siblings: the consumers of all Regsts that the producer fills in the same act; it can act only if each has a free block.
        """
        users = [self.pass_of[task.id] for task in consumers if task.id in self.on_compute]
        if producer.id in self.on_compute:
            begins = [self.pass_of[producer.id]]
        else:
            begins = [self.pass_of[task.id] for task in siblings if task.id in self.on_compute]
        spans = []
        for k in range(self.schedule.micro_batches if users else 0):
            spans.append((min(self.place[(*begin, k)] for begin in begins), max(self.place[(*user, k)] for user in users)))
        held = _most_at_once(spans)
        if producer.id not in self.on_compute:
            held += 1
        if producer.id not in self.on_compute or len(users) < len(consumers):
            held = max(held, 2)
        return max(1, min(held, self.schedule.micro_batches))


def _parts(kind: Pass) -> tuple[Pass, ...]:
    """The kinds of pass that an act stands for: a whole backward pass also stands for its input part and its weight part."""
    return (kind, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT) if kind is Pass.BACKWARD else (kind,)


def _most_at_once(spans: Sequence[tuple[int, int]]) -> int:
    """The largest number of spans (first place, last place) that share a place."""
    changes = sorted([(first, 1) for first, _ in spans] + [(last + 1, -1) for _, last in spans])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def pass_order(
    schedule: Schedule,
    drafts: Drafts,
    *,
    interleave: int,
    hold: int | None,
    given: PipelineSchedule | None,
    plan: Plan,
    act_s: Callable[[Task], float],
) -> PassOrder | None:
    """The order that a schedule prescribes; None for schedules that follow from quotas.

    Args:
        interleave: stages per placement.   hold: micro-batches that a device may hold (automatic schedule; None: as many as stages).
        given: the order of Schedule.GIVEN; its stages and micro-batches must be those of the Plan.
        plan: the Plan so far, without quotas and orders.   act_s: seconds of an act, for the automatic schedule.
    """
    p, m = drafts.staged.num_stages, drafts.micro_batches
    pass_of = passes_of(drafts, split=schedule.splits_backward)
    match schedule:
        case Schedule.ONE_F_ONE_B | Schedule.GPIPE:
            return None
        case Schedule.INTERLEAVED:
            made = interleaved(p, m, interleave)
        case Schedule.ZB_H1:
            made = zb_h1(p, m)
        case Schedule.ZB_H2:
            made = zb_h2(p, m)
        case Schedule.ZB_AUTO:
            weight_share = _weight_share(plan, pass_of)
            made = zb_auto(m, _times(plan, pass_of, act_s, p), MemoryLimit(limit=hold or p, weight_activation=weight_share)).schedule
        case Schedule.GIVEN:
            assert given is not None
            made = given
        case _:
            assert_never(schedule)
    on_compute = {d.id: d.stream.id for d in drafts.tasks.values() if d.stream.kind is StreamKind.COMPUTE}
    early = _before_all_passes(drafts)
    before: dict[str, tuple[str, ...]] = defaultdict(tuple)
    after: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for task, stream in on_compute.items():
        if task not in pass_of:
            where = before if task in early else after
            where[stream] = (*where[stream], task)
    return PassOrder(made, pass_of, before, after, on_compute)


def _before_all_passes(drafts: Drafts) -> set[str]:
    """Tasks that act once per step and need no value that the step computes per micro-batch."""
    early: set[str] = set()
    for draft in drafts.tasks.values():
        makers = {drafts.owner.get(i) for i in draft.reads if i not in drafts.stored} - {None}
        if acts_per_step(drafts, draft) and makers <= early and draft.kind is not TaskKind.UPDATE:
            early.add(draft.id)
    return early


def _times(plan: Plan, pass_of: Mapping[str, StagePass], act_s: Callable[[Task], float], num_stages: int) -> PassTimes:
    """Seconds of each pass, by the seconds of its tasks, and of the slowest transfer that acts once per micro-batch."""
    total_s: dict[StagePass, float] = defaultdict(float)
    for task, stage_pass in pass_of.items():
        total_s[stage_pass] += act_s(plan.task[task])
    transfers_s = [act_s(task) for task in plan.tasks if task.kind is TaskKind.TRANSFER and task.acts == plan.micro_batches]

    def of(kind: Pass) -> tuple[float, ...]:
        return tuple(total_s[kind, stage] for stage in range(num_stages))

    return PassTimes(
        forward_s=of(Pass.FORWARD),
        backward_input_s=of(Pass.BACKWARD_INPUT),
        backward_weight_s=of(Pass.BACKWARD_WEIGHT),
        comm_s=max(transfers_s, default=0.0),
    )


def _weight_share(plan: Plan, pass_of: Mapping[str, StagePass]) -> float:
    """M_W / M_B: the bytes saved for the weight part divided by those saved for the backward pass; the largest ratio of a stage, at most 1."""
    whole: dict[int, int] = defaultdict(int)
    weights: dict[int, int] = defaultdict(int)
    for regst in plan.regsts:
        passes = [pass_of[task.id] for task, _ in plan.consumers[regst.id] if task.id in pass_of]
        if regst.kind is not RegstKind.DATA or not passes or _filled_once(plan, regst):
            continue
        late = any(kind is Pass.BACKWARD_WEIGHT for kind, _ in passes)
        if late:
            weights[passes[0][1]] += plan.block_bytes(regst)
        if any(kind is not Pass.FORWARD for kind, _ in passes) and pass_of.get(regst.producer or "", passes[0])[0] is Pass.FORWARD:
            whole[passes[0][1]] += plan.block_bytes(regst)
    return min(1.0, max((weights[s] / whole[s] for s in whole if whole[s]), default=1.0))


def _filled_once(plan: Plan, regst: Regst) -> bool:
    """Whether the Regst has one block per step."""
    if regst.producer is None:
        return True
    producer = plan.task[regst.producer]
    (port,) = [port for port in producer.produces if port.regst == regst.id]
    return producer.acts == port.acts_per_block
