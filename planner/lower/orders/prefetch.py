"""ZeRO-3: the times at which parameters are unsharded.  Per micro-batch, unsharded copies for at most two scopes exist at once.

The gathers that unshard parameters read only state, so all of them could act when a step begins.  Control Regsts (SEMANTICS 3.7) delay them.  With
the chain of gathers g_0 .. g_{n-1} of a micro-batch, and the last fragment u_j that reads the result of g_j,

    u_{j-2} --done--> g_j                     while u_{j-1} computes, the parameters of the next block are gathered
    g_j --begun (quota f)--> u_{n-2+j}        for j = 0, 1: micro-batch k + f begins when micro-batch k ends, f in flight
                                              (1F1B and GPipe; other schedules order their passes themselves)

       collectives   g_0  g_1      g_2      g_3
       compute            u_0      u_1      u_2     u_3
                            `--->--'`--->---'

Each edge goes forward in an order in which the tasks can be performed, and edges of the second kind delay no task longer than the quota between
the forward and the backward part does, so the edges close no cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.ir.plan import Port, Regst, RegstKind, Task
from planner.lower.drafts import Drafts
from planner.lower.instances import UnshardScope
from planner.lower.names import placement_id
from planner.schedule import Schedule, in_flight

__all__ = ["Control", "controls_of", "with_controls"]

_AHEAD = 2
"""Copies that exist at once: one in use, and one that is being gathered."""


@dataclass(frozen=True, slots=True)
class Control:
    """A Regst without tensors, from its producer to the consumers."""

    regst: Regst
    consumers: tuple[str, ...]


@dataclass(slots=True)
class _Gather:
    """The gather for one scope.  tasks: its first moves.  first, last: places of the fragments that read its result.  user: the last of these."""

    tasks: list[str]
    first: int
    last: int
    user: str


def controls_of(drafts: Drafts, schedule: Schedule) -> tuple[Control, ...]:
    """The control Regsts of every stage that unshards parameters per scope; the drafts must be in topological order."""
    controls: list[Control] = []
    for stage in range(drafts.staged.num_stages):
        chain = _chain(drafts, stage)
        for number, gather in enumerate(chain):
            waits_for = next((e for e in reversed(chain[: max(0, number - _AHEAD + 1)]) if e.last < gather.first), None)
            if waits_for is not None:
                controls.append(_control(f"{waits_for.user}.done.{number}", stage, waits_for.user, gather.tasks, drafts.micro_batches))
        if drafts.micro_batches > 1 and schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):  # the others order their passes themselves
            flight = in_flight(schedule, stage, drafts.staged.num_stages, drafts.micro_batches)
            controls += _credits(chain, stage, flight)
    return tuple(controls)


def _chain(drafts: Drafts, stage: int) -> list[_Gather]:
    """The gathers of a stage in the order in which their results are read."""
    gathers: dict[UnshardScope, _Gather] = {}
    starts: dict[UnshardScope, list[str]] = {}
    for place, draft in enumerate(drafts.tasks.values()):
        if draft.stage != stage:
            continue
        for scope in dict.fromkeys(i.scope for i in draft.makes if i.scope and i.parent is not None and not i.parent.scope):
            starts.setdefault(scope, []).append(draft.id)
        if draft.kind.is_compute:
            for scope in dict.fromkeys(instance.scope for instance in draft.reads if instance.scope):
                gather = gathers.setdefault(scope, _Gather([], place, place, draft.id))
                gather.last, gather.user = place, draft.id
    for scope, gather in gathers.items():
        gather.tasks = starts[scope]
    return list(gathers.values())


def _credits(chain: Sequence[_Gather], stage: int, flight: int) -> Iterator[Control]:
    """Control Regsts by which the first gathers of a micro-batch wait until an earlier micro-batch ends."""
    for number, gather in enumerate(chain[:_AHEAD]):
        user = chain[max(len(chain) - _AHEAD + number, number) if len(chain) > _AHEAD else -1].user
        for task in gather.tasks:
            yield _control(f"{task}.begun.{number}", stage, task, [user], flight)


def _control(regst_id: str, stage: int, producer: str, consumers: Sequence[str], quota: int) -> Control:
    regst = Regst(id=regst_id, kind=RegstKind.CONTROL, placement=placement_id(stage), producer=producer, quota=quota)
    return Control(regst, tuple(consumers))


def with_controls(tasks: Mapping[str, Task], controls: Sequence[Control]) -> dict[str, Task]:
    """The tasks with a port for each control Regst."""
    made = dict(tasks)
    for control in controls:
        port = Port(regst=control.regst.id)
        producer = control.regst.producer
        assert producer is not None
        made[producer] = replace(made[producer], produces=(*made[producer].produces, port))
        for consumer in control.consumers:
            made[consumer] = replace(made[consumer], consumes=(*made[consumer].consumes, port))
    return made
