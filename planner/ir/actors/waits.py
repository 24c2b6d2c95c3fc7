"""What an act waits for, by number: the acts that fill the blocks which it reads, and those that give back the blocks which it fills.

(1) READY   block n of a consumed Regst is full after the producer's act (n - f + 1) a - 1        n = k div b
(2) ACK     block n of a produced Regst is free after the reader's act (n + f - q + 1) b - 1      n = k div a, where k begins a block

k: the act; a, b: acts per block of the producer and of the consumer; q: quota; f: 1 if the Regst starts full.  Numbers below 0 are no acts: the
Plan starts with such a block.  That streams perform one act at a time is not among these.  [SEMANTICS 3.1 to 3.6]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.ir.actors.actor import Actor, ActorId, MessageKind
from planner.ir.plan import Plan

__all__ = ["Wait", "waits"]


@dataclass(frozen=True, slots=True)
class Wait:
    """The message of ``regst`` that act ``number`` of ``sender`` sends when it ends."""

    kind: MessageKind
    regst: str
    sender: ActorId
    number: int


def waits(plan: Plan, actor: Actor, number: int) -> Iterator[Wait]:
    """Equations (1) and (2) for act ``number``, counted over all steps.

    Args:
        actor: as build_actors makes it, before its first act.
    """
    for port in actor.inputs.values():
        for source, full in port.received.items():
            (made,) = [p.acts_per_block for p in plan.task[source[0]].produces if p.regst == port.regst]
            last = (number // port.acts_per_block - full + 1) * made - 1
            if last >= 0:
                yield Wait(MessageKind.READY, port.regst, source, last)
    for out in actor.outputs.values():
        if number % out.acts_per_block:
            continue
        for sink in out.acked:
            (used,) = [p.acts_per_block for p in plan.task[sink[0]].consumes if p.regst == out.regst]
            last = (number // out.acts_per_block + out.produced - out.quota + 1) * used - 1
            if last >= 0:
                yield Wait(MessageKind.ACK, out.regst, sink, last)
