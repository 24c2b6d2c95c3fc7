"""Whether the machine itself stood still while a test with limits in seconds ran: then the limits say nothing, and the trial is made once more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["tried_until_the_machine_ran"]

TICK_S = 0.05
LATE_S = 0.25
"""A thread that wakes so much too late was kept from running: a virtual machine that its host has stopped, or other processes."""

TRIALS = 4


class Pauses:
    """total_s: how much too late a thread woke that sleeps all the time; single delays below LATE_S do not count."""

    def __init__(self) -> None:
        self.total_s = 0.0

    def note(self, late_s: float) -> None:
        if late_s > LATE_S:
            self.total_s += late_s


@contextmanager
def noticing_pauses() -> Iterator[Pauses]:
    pauses, over = Pauses(), threading.Event()

    def sleep_again_and_again() -> None:
        while not over.is_set():
            begin = time.monotonic()
            time.sleep(TICK_S)
            pauses.note(time.monotonic() - begin - TICK_S)

    sleeper = threading.Thread(target=sleep_again_and_again, daemon=True)
    sleeper.start()
    try:
        yield pauses
    finally:
        over.set()
        sleeper.join()


def tried_until_the_machine_ran(trial: Callable[[int], None]) -> None:
    """Make a trial, which is told its number; once more where it fails and the machine stood still meanwhile."""
    for number in range(TRIALS):
        with noticing_pauses() as pauses:
            try:
                trial(number)
            except AssertionError:
                if number == TRIALS - 1 or pauses.total_s < LATE_S:
                    raise
                continue
            return
