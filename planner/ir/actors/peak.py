"""Live bytes per placement while the token game is played: what a step needs if acts take as long as they are said to.

    reserved   all blocks of all Regsts at once (verify.device_bytes): enough whatever the order of acts is
    live       a block counts from the begin of the first act that writes it until its last reader has given it back

A runtime that takes blocks when it needs them, as ours does, stays near the second.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.ir.actors.actor import Actor, Message, MessageKind
from planner.ir.actors.liveness import Observer, play
from planner.ir.plan import Fragment, Plan, RegstKind, Task

__all__ = ["live_bytes"]


def live_bytes(plan: Plan, duration_s: Callable[[Task], float] = lambda task: 1.0, steps: int = 2) -> dict[int, int]:
    """Peak of live bytes per rank, workspace of running fragments included.

    Args:
        duration_s: how long an act takes.   steps: two, so that one step's update meets the next step's forward pass.
    """
    ledger = _Folded(plan)
    play(plan, steps, duration_s, ledger)
    total = dict.fromkeys(range(plan.num_ranks), 0)
    for placement, peak in ledger.peak.items():
        for rank in plan.placement[placement].ranks:
            total[rank] = max(total[rank], peak)
    return total


class _Folded(Observer):
    """All ranks of a placement hold alike, so one of them is counted."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.size = {r.id: 0 if r.kind is RegstKind.STATE else plan.block_bytes(r) for r in plan.regsts}
        self.now = {p.id: 0 for p in plan.placements}
        for regst in plan.regsts:
            if regst.kind is RegstKind.STATE:
                self.now[regst.placement] += plan.block_bytes(regst)
        self.peak = dict(self.now)
        self.freed: dict[str, int] = {}

    def began(self, actor: Actor) -> None:
        for regst, port in actor.outputs.items():
            if port.phase == 0:
                self._hold(self.plan.regst[regst].placement, self.size[regst])
        if isinstance(actor.task.body, Fragment):
            self._hold(actor.task.placement, actor.task.body.workspace_bytes)

    def ended(self, actor: Actor) -> None:
        if isinstance(actor.task.body, Fragment):
            self._hold(actor.task.placement, -actor.task.body.workspace_bytes)
        for regst, port in actor.outputs.items():
            if port.phase == 0 and not port.acked:
                self._hold(self.plan.regst[regst].placement, -self.size[regst])

    def received(self, actor: Actor, message: Message) -> None:
        if message.kind is not MessageKind.ACK:
            return
        given_back = min(actor.outputs[message.regst].acked.values())
        before = self.freed.get(message.regst, 0)
        if given_back > before:
            self.freed[message.regst] = given_back
            self._hold(self.plan.regst[message.regst].placement, (before - given_back) * self.size[message.regst])

    def _hold(self, placement: str, size_bytes: int) -> None:
        self.now[placement] += size_bytes
        self.peak[placement] = max(self.peak[placement], self.now[placement])
