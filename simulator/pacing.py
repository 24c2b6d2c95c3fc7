"""Acts whose speed others change, on SimPy's clock: the readable meaning of simulator.network.act_flows.

t:  acts end, messages arrive   (priority NORMAL)
    idle streams choose         (simulator.game: settled)
    speeds are worked out       (here: after the last choice of the instant)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import simpy
from simpy.events import EventPriority

from planner.ir.plan import Task
from simulator.network.act_flows import Contention, Together, speeds

__all__ = ["At", "Pace"]


class At(simpy.Event):
    """Fires at the present time, after everything of it that has a lower priority number (SimPy's own: URGENT 0, NORMAL 1)."""

    def __init__(self, env: simpy.Environment, priority: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=EventPriority(priority))


_OVER = 3
"""The end of an instant, after its streams have chosen (2)."""


@dataclass(slots=True, eq=False)
class _Underway:
    """``left_s``: what was left of the act's price at ``since_s``.   version: tells the end that holds from those foreseen before."""

    ended: simpy.Event
    left_s: float
    since_s: float
    speed: float = 0.0
    version: int = 0


class Pace:
    """Mutable, used for one game.  A stream performs one act at a time, so task and ranks name an act under way."""

    def __init__(self, env: simpy.Environment, contention: Contention) -> None:
        self._env, self._flows, self._slowdown = env, contention.flows, contention.slowdown
        self._underway: dict[Together, _Underway] = {}
        self._computes: dict[Together, int] = {}
        self._talks: Counter[int] = Counter()
        self._speeds_of: dict[frozenset[Together], dict[Together, float]] = {}
        self._settling = False

    def perform(self, task: Task, ranks: tuple[int, ...], duration_s: float) -> simpy.Event:
        """The act begins; the same event, which fires at its end, for all ranks that act together."""
        together = task.id, ranks
        feels = task.kind.is_compute and self._slowdown != 1
        if duration_s == 0 or not (feels or together in self._flows):
            return self._env.timeout(duration_s)
        act = self._underway.get(together)
        if act is None:
            act = self._underway[together] = _Underway(self._env.event(), duration_s, self._env.now)
            if feels:
                self._computes[together] = ranks[0]
            if together in self._flows:
                self._talks.update(self._flows[together].talking)
            self._settle_later()
        return act.ended

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            callbacks = At(self._env, _OVER).callbacks
            assert callbacks is not None
            callbacks.append(self._settle)

    def _settle(self, _: simpy.Event) -> None:
        """(4): the instant is over."""
        self._settling = False
        shared = self._shared(frozenset(together for together in self._underway if together in self._flows))
        for together, act in self._underway.items():
            beside = together in self._computes and self._talks[self._computes[together]] > 0
            self._set(together, act, 1 / self._slowdown if beside else shared.get(together, 1.0))

    def _shared(self, active: frozenset[Together]) -> dict[Together, float]:
        """(2), worked out once per set of acts, as steps repeat."""
        if active not in self._speeds_of:
            users: dict[str, list[tuple[Together, float]]] = {}
            for together in active:
                for link, share in self._flows[together].shares.items():
                    users.setdefault(link, []).append((together, share))
            self._speeds_of[active] = speeds(users)
        return self._speeds_of[active]

    def _set(self, together: Together, act: _Underway, speed: float) -> None:
        if speed == act.speed:
            return
        now_s = self._env.now
        act.left_s = max(act.left_s - (now_s - act.since_s) * act.speed, 0.0)
        act.since_s, act.speed, act.version = now_s, speed, act.version + 1
        end = self._env.timeout(act.left_s / speed, (together, act, act.version))
        assert end.callbacks is not None
        end.callbacks.append(self._end)

    def _end(self, event: simpy.Event) -> None:
        foreseen: tuple[Together, _Underway, int] | None = event.value
        assert foreseen is not None
        together, act, version = foreseen
        if version != act.version or self._underway.get(together) is not act:
            return
        del self._underway[together]
        self._computes.pop(together, None)
        if together in self._flows:
            self._talks.subtract(self._flows[together].talking)
        act.ended.succeed()
        self._settle_later()
