"""Ctrl-C that cannot be lost.

Python raises KeyboardInterrupt wherever the main thread stands.  Where that is a callback of the garbage collector, a finalizer or a callback of a
weak reference, it prints the exception and goes on, and nobody else hears of it [docs.python.org/3/library/signal.html, "Note on Signal Handlers
and Exceptions"].  So while a run goes on

    SIGINT --> handler: notes it --> KeyboardInterrupt, as before: it ends a wait at once
    the loop that waits for the run: has one been noted? --> KeyboardInterrupt, if it got here
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts", "noticing_interrupts"]


class Interrupts:
    """What was noted and not handled yet."""

    def __init__(self) -> None:
        self._pending = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self._pending = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        """Raises KeyboardInterrupt: one has come that nobody has handled."""
        if self._pending:
            raise KeyboardInterrupt

    def handled(self) -> None:
        """The interrupt is being answered; from here on another one counts."""
        self._pending = False


@contextmanager
def noticing_interrupts() -> Iterator[Interrupts]:
    """Note interrupts in the body; one inside another is the same.  Elsewhere than in the main thread, or where the program handles SIGINT in
    a way of its own, everything stays as it is.

    Raises:
        KeyboardInterrupt: at the end, for one that was lost in the body, even if the body failed meanwhile.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(outer := getattr(handler, "__self__", None), Interrupts):
        yield outer
        return
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    except KeyboardInterrupt:
        interrupts.handled()
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        interrupts.check()
