"""Why a stream was idle: every gap of every stream, cut into intervals that each have one reason and the act that caused it.

    rank 1  compute  |..data: act1 from F0..|~link: send0~|=F0=|=F1=|..block: dout1, held by back1..|=B0=|   nothing   |
                     ^ first act of the trace                                                         last act's end ^

What the stream did next decides: the gap before an act belongs to the last thing that act waited for (simulator.analysis.replay.Cause).

    data      a block of ``regst`` was not yet made; ``blame`` is the act that made it
    block     no block of ``regst`` was free (its quota); ``blame`` is the act that gave one back
    link      ``regst`` was made, and ``blame``, a transfer or a collective, was moving it or waiting for its stream
    partner   the stream's own collective (or the one that fills ``regst``) waited for its last rank, which came with ``blame``
    start     ready, but begun later: the performer's own time, or a message on its way if the trace does not tell how long those travel
    nothing   after the stream's last act

The intervals and the acts of a stream tile the trace, from its first begin to its last end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from planner.ir.actors.actor import Actor, MessageKind
from planner.ir.errors import Mismatch
from planner.ir.plan import Plan, TaskKind
from planner.ir.traces.trace import Act, Trace
from simulator.analysis.replay import Cause, ReplayObserver, replay

__all__ = ["Idle", "Reason", "idle_times"]


class Reason(Enum):
    DATA = "data"
    BLOCK = "block"
    LINK = "link"
    PARTNER = "partner"
    START = "start"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A stream of a rank was idle from begin_s to end_s (> begin_s), before ``act`` (None: it had no more).  See the module's text."""

    rank: int
    stream: str
    begin_s: float
    end_s: float
    reason: Reason
    act: Act | None = None
    regst: str | None = None
    blame: Act | None = None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s

    def __str__(self) -> str:
        whom = f"{self.blame.task} {self.blame.number} (rank {self.blame.rank})" if self.blame else ""
        match self.reason:
            case Reason.DATA:
                return f"waits for data: {self.regst}, from {whom}"
            case Reason.BLOCK:
                return f"waits for a free block: {self.regst}, held by {whom}"
            case Reason.LINK:
                return f"waits for the link: {self.regst}, moved by {whom}"
            case Reason.PARTNER:
                return f"waits for its partner in {whom}"
            case Reason.START:
                return "ready, not yet begun"
            case Reason.NOTHING:
                return "nothing left to do"


def idle_times(plan: Plan, trace: Trace, ranks: Collection[int] | None = None) -> tuple[Idle, ...]:
    """All idle intervals of some ranks (None: all), by rank, stream and time.

    Raises:
        Mismatch: the trace is of another plan, or a rank is not the plan's.   InvalidTrace: see simulator.analysis.replay.
    """
    wanted = set(range(plan.num_ranks)) if ranks is None else set(ranks)
    if unknown := wanted - set(range(plan.num_ranks)):
        raise Mismatch(f"idle time of ranks {sorted(unknown)[:8]} is asked for; the plan has ranks 0 .. {plan.num_ranks - 1}")
    begins = _Begins()
    replay(plan, trace, begins)
    return tuple(begins.idle(plan, trace, wanted))


class _Begins(ReplayObserver):
    """When each act began to hold its stream, and what it had waited for."""

    def __init__(self) -> None:
        self.begin_of: dict[Act, tuple[float, Cause | None]] = {}

    def began(self, actor: Actor, act: Act, begin_s: float, cause: Cause | None) -> None:
        self.begin_of[act] = begin_s, cause

    def idle(self, plan: Plan, trace: Trace, wanted: set[int]) -> Iterator[Idle]:
        if not trace.acts:
            return
        self.plan = plan
        self.last = _last_of_meetings(plan, trace, self.begin_of)
        first_s = min(begin_s for begin_s, _ in self.begin_of.values())
        last_s = max(act.end_s for act in trace.acts)
        place = {stream.id: number for number, stream in enumerate(plan.streams)}
        acts_of_streams: dict[tuple[int, int], list[Act]] = {
            (rank, number): [] for number, stream in enumerate(plan.streams) for rank in plan.placement[stream.placement].ranks
        }
        for act in trace.acts:
            acts_of_streams[act.rank, place[plan.task[act.task].stream]].append(act)
        for (rank, number), acts in sorted(acts_of_streams.items()):
            if rank not in wanted:
                continue
            stream, free_s = plan.streams[number].id, first_s
            for act in sorted(acts, key=lambda act: (act.start_s, act.end_s)):
                for begin_s, end_s, reason, regst, blame in self._before(act, free_s, act.start_s):
                    yield Idle(rank=rank, stream=stream, begin_s=begin_s, end_s=end_s, reason=reason, act=act, regst=regst, blame=blame)
                free_s = act.end_s
            if last_s > free_s:
                yield Idle(rank=rank, stream=stream, begin_s=free_s, end_s=last_s, reason=Reason.NOTHING)

    def _before(self, act: Act, from_s: float, to_s: float) -> Iterator[_Interval]:
        """The gap [from_s, to_s] that ends where ``act`` starts."""
        begin_s, cause = self.begin_of[act]
        ready_s = min(cause.arrives_s, begin_s) if cause is not None else from_s
        if cause is not None and ready_s > from_s:
            yield from self._waiting(cause, from_s, min(ready_s, to_s))
        middle_s = min(max(ready_s, from_s, begin_s), to_s)
        if middle_s > max(ready_s, from_s):
            yield max(ready_s, from_s), middle_s, Reason.START, None, None
        if to_s > middle_s:
            yield middle_s, to_s, Reason.PARTNER if act in self.last else Reason.START, None, self.last.get(act)

    def _waiting(self, cause: Cause, from_s: float, to_s: float) -> Iterator[_Interval]:
        """[from_s, to_s] was spent on waiting for ``cause``; behind a communication stands what that waited for."""
        act = cause.act
        if cause.kind is MessageKind.ACK:
            yield from_s, to_s, Reason.BLOCK, cause.regst, act
            return
        if act not in self.last and self.plan.task[act.task].kind is not TaskKind.TRANSFER:
            yield from_s, to_s, Reason.DATA, cause.regst, act
            return
        begin_s, before = self.begin_of[act]
        ready_s = min(before.arrives_s, begin_s) if before is not None else from_s
        if before is not None and ready_s > from_s:
            yield from self._waiting(before, from_s, min(ready_s, to_s))
        from_s = max(from_s, min(ready_s, to_s))
        if act in self.last and act.start_s > begin_s:
            for cut_s, reason, blame in ((begin_s, Reason.LINK, act), (act.start_s, Reason.PARTNER, self.last[act])):
                if min(cut_s, to_s) > from_s:
                    yield from_s, min(cut_s, to_s), reason, cause.regst, blame
                    from_s = min(cut_s, to_s)
        if to_s > from_s:
            yield from_s, to_s, Reason.LINK, cause.regst, act


_Interval = tuple[float, float, Reason, str | None, Act | None]


def _last_of_meetings(plan: Plan, trace: Trace, begin_of: Mapping[Act, tuple[float, Cause | None]]) -> Mapping[Act, Act]:
    """Every act of a collective -> the act of the rank that came last to it (itself, if it was that one)."""
    meetings: dict[tuple[str, int, tuple[int, ...]], list[Act]] = defaultdict(list)
    for act in trace.acts:
        if (task := plan.task[act.task]).meeting_axis is not None:
            meetings[act.task, act.number, plan.peers(task, act.rank)].append(act)
    last = ((max(present, key=lambda act: begin_of[act][0]), present) for present in meetings.values())
    return {act: latest for latest, present in last for act in present}
