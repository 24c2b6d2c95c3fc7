"""What a function returns, from a second process with a core to itself, while the first goes on:

    first     start() ....... goes on ....... result()
    second      work() ->

The second process is a fork of the first, so it has all that was worked out.  Where there is none, where it fails, or where it takes too long, the
first does the work itself: what comes out, and what is raised, is the same.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Generic, TypeVar

__all__ = ["Beside", "end", "forked", "has_second_core", "patient_until_s", "unheard"]

T = TypeVar("T")

_PATIENCE, _LEAST_S = 4.0, 5.0
_POLL_S = 0.02


def has_second_core() -> bool:
    """Whether a second process may be forked, and has a core to itself.

    Not in a process that Python itself started (a sweep's, a server's), where cores are shared already; nor beside other threads, whose locks
    would stay locked in the fork.  A thread that draws the progress is no matter: a fork draws nothing.
    """
    if not hasattr(os, "fork") or not hasattr(os, "sched_getaffinity") or parent_process() is not None:
        return False
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread() and not _draws(thread)]
    return len(os.sched_getaffinity(0)) > 1 and not others and "jax" not in sys.modules


def _draws(thread: threading.Thread) -> bool:
    return type(thread).__module__.startswith("rich.")


def forked(work: Callable[[], None]) -> int:
    """The id of a process that is a fork of this one, does the work, and ends.

    It does not collect garbage: it ends soon, and to look at all objects would copy the memory that it shares with the first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries: the fork calls none that has any
        process = os.fork()
    if process == 0:
        gc.disable()
        try:
            work()
        finally:
            os._exit(0)
    return process


def end(process: int) -> None:
    """End a process that ``forked`` made."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@contextmanager
def unheard() -> Iterator[None]:
    """Inside, a fork may call torch, and logs and warnings are left to the first process."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # threads of the first process are not here
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def patient_until_s(began_s: float) -> float:
    """Until when, by perf_counter, the first process waits for what the second began at ``began_s``: four times as long again, and 5 s at least."""
    return perf_counter() + max(_PATIENCE * (perf_counter() - began_s), _LEAST_S)


@dataclass(slots=True)
class Beside(Generic[T]):
    """A function that a second process may work out.

    work: what it returns can be pickled.   is_up: whether to wait no longer.   allowed: whether to fork at all.
    until_s: when the work began -> until when the first process waits for its result, by perf_counter.
    """

    work: Callable[[], T]
    is_up: Callable[[], bool] = lambda: False
    allowed: Callable[[], bool] = has_second_core
    until_s: Callable[[float], float] = patient_until_s
    _second: tuple[int, Connection] | None = None
    _began_s: float = 0.0

    @property
    def process(self) -> int | None:
        """The second process's id; None: there is none."""
        return None if self._second is None else self._second[0]

    def start(self) -> bool:
        """Fork the second process; False: there may be none."""
        if self._second is not None or not self.allowed():
            return self._second is not None
        receiver, sender = Pipe(duplex=False)
        process = forked(lambda: self._work_beside(sender))
        sender.close()
        self._second, self._began_s = (process, receiver), perf_counter()
        return True

    def result(self, meanwhile: Callable[[], bool] = lambda: False) -> T:
        """What ``work`` returns; it raises what ``work`` raises.   meanwhile: as in ``received``."""
        found = self.received(meanwhile)
        return self.work() if found is None else found[0]

    def received(self, meanwhile: Callable[[], bool] = lambda: False) -> tuple[T] | None:
        """What the second process found, which is ended; None: nothing, or not in time.

        Args:
            meanwhile: does a piece of other work; False: there is none.
        """
        if self._second is None:
            return None
        until_s = self.until_s(self._began_s)
        try:
            with suppress(EOFError, OSError, pickle.UnpicklingError):
                while not self.is_up() and perf_counter() < until_s:
                    if self._second[1].poll() or (not meanwhile() and self._second[1].poll(_POLL_S)):
                        found: T = self._second[1].recv()
                        return (found,)
            return None
        finally:
            self.stop()

    def stop(self) -> None:
        """End the second process."""
        if self._second is not None:
            (process, receiver), self._second = self._second, None
            receiver.close()
            end(process)

    def _work_beside(self, sender: Connection) -> None:
        """Do the work in the second process and send the result; logs and warnings are left to the first process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it, too; the first process decides
        with suppress(Exception), unheard():
            sender.send(self.work())
