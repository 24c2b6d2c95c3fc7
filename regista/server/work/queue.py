"""Which request a free process takes next: the oldest of its lane, or a younger one near the front whose program the process has at hand.

Quick verbs have a lane of their own, so that no look at a trace waits behind searches.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from regista.wire import Request, Role

__all__ = ["Lane", "Queue", "lane_of", "program_key"]

_AHEAD = 8
_RUN = frozenset({"run", "checkpoint"})
_QUICK = frozenset({"predict", "clusters", "compare", "gantt", "export", "diff"})


class Lane(Enum):
    """SEARCH: as many processes as the limit says.   QUICK: one.   RUN: one, which may start the processes of a run."""

    SEARCH = "search"
    QUICK = "quick"
    RUN = "run"


def lane_of(request: Request) -> Lane:
    return Lane.RUN if request.verb in _RUN else Lane.QUICK if request.verb in _QUICK else Lane.SEARCH


def program_key(request: Request) -> str:
    """What requests share that are about the same program or Plan."""
    named = [text for role, text in request.texts() if role in (Role.MODEL, Role.INPUT)]
    return " ".join(request.files.get(name, name) for name in named[:1])


@dataclass(slots=True)
class Queue:
    """Ids of requests that wait, the oldest first."""

    _waiting: dict[str, Request] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, request_id: str, request: Request) -> None:
        self._waiting[request_id] = request

    def add_first(self, request_id: str, request: Request) -> None:
        """One that was begun before."""
        self._waiting = {request_id: request, **self._waiting}

    def remove(self, request_id: str) -> bool:
        """Whether it was there."""
        return self._waiting.pop(request_id, None) is not None

    def next_of(self, lane: Lane, warm: Container[str], elsewhere: Iterable[Container[str]] = ()) -> str | None:
        """The request for a process of this lane; None: nothing waits there.

        Args:
            warm: programs that it has at hand.   elsewhere: those of other free processes, whose requests are left to them.
        """
        mine = [(name, program_key(request)) for name, request in self._waiting.items() if lane_of(request) is lane][:_AHEAD]
        for name, key in mine:
            if key in warm:
                return name
        return next((name for name, key in mine if not any(key in other for other in elsewhere)), None)
