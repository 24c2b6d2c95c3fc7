"""The errors that a run in one process raises: they name the act, its rank and its micro-batch."""

from __future__ import annotations

from collections.abc import Collection

from backend.inprocess.lanes import LateError
from backend.inprocess.rendezvous import JointAct
from planner.ir.actors.actor import Actor, ActorId, StreamGate
from planner.ir.actors.deadlock import explain_wait
from planner.ir.errors import RegistaError, WorkerFailed
from planner.ir.plan import Plan

__all__ = ["failed", "failed_late", "stalled"]


def failed(joint: JointAct, error: BaseException, more: str = "") -> WorkerFailed:
    """An act raised."""
    actor, number, _ = joint[0]
    name = "" if isinstance(error, RegistaError) else f"{type(error).__name__}: "
    return WorkerFailed(f"rank {actor.rank} failed in {_where(actor, number)}: {name}{error}{more}")


def failed_late(late: LateError) -> WorkerFailed:
    """An act failed after it was put into its lane."""
    also = [f"{_where(*other[0][:2])} of rank {other[0][0].rank}" for other in late.others[:4]]
    more = f"; devices tell late, and also in flight were {', '.join(also)}" if also else ""
    return failed(late.joint, late.error, more)


def stalled(
    plan: Plan,
    actors: dict[ActorId, Actor],
    gates: dict[tuple[str, int], StreamGate],
    waiting: Collection[ActorId],
    timeout_s: float,
) -> WorkerFailed:
    """Nothing ended for ``timeout_s``.

    Args:
        waiting: actors that are busy because they wait for the other ranks of a collective.
    """
    running = [actor for actor in actors.values() if actor.busy and actor.id not in waiting]
    if not running:
        return WorkerFailed(f"no act ended for {timeout_s:g} s: {explain_wait(plan, actors, gates)}")
    first = running[0]
    also = "".join(f", {_where(a, a.acts_begun - 1)} of rank {a.rank}" for a in running[1:4])
    story = f"; also running{also[1:]}" if also else ""
    return WorkerFailed(
        f"rank {first.rank} failed in {_where(first, first.acts_begun - 1)}: it is running and did not end for {timeout_s:g} s{story}; "
        f"its thread ends when the act returns, as no thread can be killed"
    )


def _where(actor: Actor, number: int) -> str:
    return f"task {actor.task.id} (act {number}, micro-batch {number % actor.task.acts})"
