"""How fast a checkpoint is written beside acts, on a clock that only work and rests move."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import backend.checkpoint.pace as pace_module
from backend.checkpoint.pace import SHARE, Pace, rest_s

MB = 1_000_000
S_PER_MB = 0.0008


@dataclass
class Clock:
    """log: (when, seconds of work) in the order in which they were done."""

    now_s: float = 100.0
    worked_s: float = 0.0
    log: list[tuple[float, float]] = field(default_factory=list)

    def work(self, seconds: float) -> None:
        self.log.append((self.now_s, seconds))
        self.now_s += seconds
        self.worked_s += seconds

    def share(self, begin_s: float, end_s: float) -> float:
        return sum(seconds for when, seconds in self.log if begin_s <= when < end_s) / (end_s - begin_s)


class Hurry:
    """Takes the place of an Event: a wait moves the clock, unless it is set."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.is_set = clock, False

    def wait(self, seconds: float) -> None:
        self._clock.now_s += 0.0 if self.is_set else seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace_module, "time", SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.worked_s))
    return clock


def paced(clock: Clock, share: float = SHARE) -> tuple[Pace, Hurry]:
    pace, hurry = Pace(share), Hurry(clock)
    pace.hurry = hurry  # type: ignore[assignment]
    return pace, hurry


def write(clock: Clock, pace: Pace, megabytes: int, interval_s: float, step_s: float = 0.0) -> tuple[float, float]:
    """A save: the copy and all its pieces.  When it began and when the last byte was written."""
    begun_s, copy_s = clock.now_s, megabytes * S_PER_MB / 4
    clock.work(copy_s)
    pace.begin(megabytes * MB, copied_s=copy_s, step_s=step_s, interval_s=interval_s)
    for done in range(1, megabytes + 1):
        clock.work(S_PER_MB)
        pace.rest(done * MB)
    return begun_s, clock.now_s


@pytest.mark.parametrize(
    ("worked_s", "share", "remaining_s", "left_s", "rests_s"),
    [
        (0.002, 0.05, 1.0, math.inf, 0.038),
        (0.002, 0.05, 1.0, 100.0, 0.038),  # it needs no more than 1 % of the time
        (0.002, 0.05, 1.0, 10.0, 0.018),  # a tenth
        (0.002, 0.05, 1.0, 1.0, 0.0),
        (0.002, 0.05, 1.0, -3.0, 0.0),
        (0.002, 1.0, 1.0, math.inf, 0.0),
    ],
)
def test_a_rest_leaves_the_share_or_as_much_as_the_next_save_asks_for(
    worked_s: float, share: float, remaining_s: float, left_s: float, rests_s: float
) -> None:
    assert rest_s(worked_s, share, remaining_s, left_s) == pytest.approx(rests_s)


def test_copy_and_writing_of_a_save_take_no_more_than_the_share_of_any_two_tenths_of_a_second(clock: Clock) -> None:
    """The step that copied was stopped by the copy and, at once, by the first turns of writing: 8.6 % of a step of 0.1 s."""
    pace, _ = paced(clock)
    begun_s, ended_s = write(clock, pace, 20, math.inf)
    assert clock.worked_s / (ended_s - begun_s) == pytest.approx(SHARE, rel=0.15)
    starts = [begun_s + 0.01 * place for place in range(int((ended_s - begun_s - 0.2) / 0.01))]
    assert max(clock.share(start, start + 0.2) for start in starts) <= SHARE + 0.0016 / 0.2  # and one turn of two pieces


@pytest.mark.parametrize("step_s", [0.1, 1.0])
def test_the_step_that_copies_is_left_alone_by_the_writer(clock: Clock, step_s: float) -> None:
    pace, _ = paced(clock)
    begun_s, _ = write(clock, pace, 20, 100 * step_s, step_s)
    assert clock.share(begun_s, begun_s + step_s) == pytest.approx(20 * S_PER_MB / 4 / step_s)


def test_where_the_next_save_comes_soon_the_work_is_spread_evenly_and_done_before_it(clock: Clock) -> None:
    pace, _ = paced(clock)
    write(clock, pace, 20, math.inf)  # what a byte costs is known
    begun_s, ended_s = write(clock, pace, 20, 0.2)
    assert ended_s - begun_s <= 0.2
    halves = [clock.share(begun_s + 0.01, begun_s + 0.08), clock.share(begun_s + 0.08, begun_s + 0.15)]
    assert halves[0] == pytest.approx(halves[1], rel=0.35)


@pytest.mark.parametrize("megabytes", [1, 5, 50])
def test_a_save_that_somebody_waits_for_does_not_rest_and_none_does_where_acts_need_no_core(clock: Clock, megabytes: int) -> None:
    pace, hurry = paced(clock)
    hurry.is_set = True
    begun_s, ended_s = write(clock, pace, megabytes, math.inf)
    assert ended_s - begun_s == pytest.approx(1.25 * megabytes * S_PER_MB)
    pace, _ = paced(clock, share=1.0)
    begun_s, ended_s = write(clock, pace, megabytes, math.inf)
    assert ended_s - begun_s == pytest.approx(1.25 * megabytes * S_PER_MB)
