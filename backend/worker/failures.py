"""Why a rank ended: the Failure that it writes when an act raises, or when no event comes in time."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from backend.run_folder.files import Failure, FailureKind
from planner.ir.actors.actor import Actor, ActorId
from planner.ir.errors import RegistaError, WorkerFailed
from planner.ir.plan import TaskKind

__all__ = ["RankFailed", "failure_of_act", "failure_of_reader", "stalled"]

_MOST_LINES = 8


class RankFailed(Exception):
    """Carries the Failure that ends this worker."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of_act(actor: Actor, number: int, error: BaseException) -> Failure:
    """What an act raised; gloo's errors of a lost or silent peer are told from those of the act itself."""
    text = str(error)
    if isinstance(error, WorkerFailed) or (actor.task.kind is TaskKind.BOXING and ("onnection" in text or "reset by peer" in text)):
        kind = FailureKind.PEER_LOST
    elif actor.task.kind is TaskKind.BOXING and "imed out" in text:
        kind = FailureKind.STALLED
    else:
        kind = FailureKind.RAISED
    name = "" if isinstance(error, RegistaError) else f"{type(error).__name__}: "
    return Failure(
        rank=actor.rank,
        kind=kind,
        message=f"{name}{text}",
        task=actor.task.id,
        act=number,
        micro_batch=number % actor.task.acts,
        traceback="".join(traceback.format_exception(error)),
    )


def failure_of_reader(rank: int, peer: int, error: Exception) -> Failure:
    """What ended the thread that reads from ``peer``: a broken connection, or a fault of this rank."""
    if isinstance(error, OSError):
        return Failure(rank=rank, kind=FailureKind.PEER_LOST, message=f"the connection to rank {peer} broke")
    stack = "".join(traceback.format_exception(error))
    message = f"reading what rank {peer} sent: {type(error).__name__}: {error}"
    return Failure(rank=rank, kind=FailureKind.RAISED, message=message, traceback=stack)


def stalled(rank: int, actors: Iterable[Actor], timeout_s: float) -> Failure:
    """What each actor of the rank runs or waits for, after ``timeout_s`` without an event."""
    lines: list[str] = []
    for actor in actors:
        if actor.done:
            continue
        if actor.busy:
            lines.append(f"{actor.task.id} act {actor.acts_begun - 1} is running and does not end")
            continue
        for incoming in actor.inputs.values():
            if not incoming.readable:
                lines.append(
                    f"{actor.task.id} waits for data of regst {incoming.regst} from {_behind(incoming.received, incoming.consumed)}"
                )
        for out in actor.outputs.values():
            if not out.free:
                lines.append(f"{actor.task.id} waits until {_behind(out.acked, out.produced - out.quota)} frees regst {out.regst}")
    shown = "; ".join(sorted(lines, key=lambda line: "is running" not in line)[:_MOST_LINES])
    return Failure(rank=rank, kind=FailureKind.STALLED, message=f"no act ended and no message came for {timeout_s:g} s: {shown}")


def _behind(counts: dict[ActorId, int], done: int) -> str:
    """The actors whose messages are missing."""
    return ", ".join(f"{task} (rank {rank})" for (task, rank), count in counts.items() if count <= done)
