"""What a server knows of a request: what has happened to it, and where it stands."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from regista.server.work.child import Child
from regista.wire import Outcome, Request, State

__all__ = ["Event", "Open", "Status"]

_EVENTS_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """number: of the request's events, from 0.   name: ``state``, ``progress``, or ``alive``, which says that nothing has happened for a while."""

    number: int
    name: str
    data: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a request stands.  outcome: once it has ended."""

    id: str
    request: Request
    state: State
    outcome: Outcome | None = None

    def data(self) -> dict[str, object]:
        data: dict[str, object] = {"id": self.id, "state": self.state.value, "request": self.request.data()}
        return data if self.outcome is None else data | {"outcome": self.outcome.data()}


@dataclass(slots=True)
class Open:
    """A request that has not ended."""

    request: Request
    state: State = State.QUEUED
    attempts: int = 0
    child: Child | None = None
    discard: bool = False
    deadline_s: float = 0.0
    reason: Outcome | None = None
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_EVENTS_KEPT))
    number: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, name: str, data: dict[str, object]) -> None:
        self.events.append(Event(number=self.number, name=name, data=data))
        self.number += 1
        self.changed.set()
        self.changed = asyncio.Event()
