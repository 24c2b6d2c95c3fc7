"""Liveness (SEMANTICS 4.1) by playing the token game.

Why playing proves it.  Each Regst has one producer, messages are first-in first-out, and an act runs to its end once begun, so the net is
persistent: whatever may fire stays fireable until it fires.  All maximal firing orders then fire the same acts.  If one order completes a
step, every order does; and after a step all counters stand as before it, so every later step completes too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from planner.ir.actors.actor import Actor
from planner.ir.actors.game import Observer, TokenGame
from planner.ir.errors import DeadLock
from planner.ir.plan import Plan, Task

__all__ = ["Firing", "play"]


@dataclass(frozen=True, slots=True)
class Firing:
    """One act of the folded game."""

    task: str
    act: int
    start_s: float
    end_s: float


def play(
    plan: Plan, steps: int = 1, duration_s: Callable[[Task], float] = lambda task: 1.0, observer: Observer | None = None
) -> tuple[Firing, ...]:
    """Fire every act of ``steps`` steps in the folded Plan, streams one act at a time, ready tasks by priority.

    Args:
        duration_s: how long an act takes; orders the firings, never decides liveness.

    Raises:
        DeadLock: some act can never fire; the message names the cycle and the quota that would break it.
    """
    game = TokenGame(plan, steps, () if observer is None else (observer,), folded=True)
    running: list[tuple[float, int, Actor]] = []  # a heap by end; acts that end together end in the order in which they began
    log: list[Firing] = []
    now_s = 0.0
    while True:
        for actor, act in game.begin_acts():
            end_s = now_s + duration_s(actor.task)
            heapq.heappush(running, (end_s, len(log), actor))
            log.append(Firing(actor.task.id, act, now_s, end_s))
        if not running:
            break
        now_s = running[0][0]
        while running and running[0][0] == now_s:
            for message in game.end(heapq.heappop(running)[2]):
                game.deliver(message)
    if not game.is_over:
        raise DeadLock(game.explain())
    return tuple(log)
