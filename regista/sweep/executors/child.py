"""A process of its own for points, on a worker whose process has other threads.

Planning watches what the process does beside it (that a module draws nothing from Python's ``random``, say), and two threads that plan would
see each other; a worker of Dask has a thread per point and more of its own.  So the worker hands points to children that do nothing else:

    worker  --stdin: pickle of (work, point)-->  child: perform_points()  --stdout: pickle of the columns or an error-->  worker

A child whose worker has gone reads the end of its input, and ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

from regista.sweep.executors.lost import Work
from regista.sweep.measure import Columns
from regista.sweep.point import Point

__all__ = ["Apart", "ChildLost", "perform_points"]


class ChildLost(Exception):
    """The process ended before the point was done."""


class Child:
    """A process that performs one point at a time."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        code = f"from {__name__} import perform_points; perform_points()"
        self._process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def __call__(self, work: Work, point: Point) -> Columns:
        """The point's columns.

        Raises:
            ChildLost: the process ended.   Exception: what the work raised.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((work, point), self._process.stdin)
            self._process.stdin.flush()
            error, columns = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            raise ChildLost(f"the process for {point.label} ended") from None
        if error is not None:
            raise error
        return dict(columns)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


_OF_THREAD = threading.local()
"""The child of each thread of a worker, kept for its next point."""


class Apart:
    """Performs a point in the child of the thread that is asked; goes to a worker as it is."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, point: Point) -> Columns:
        child: Child | None = getattr(_OF_THREAD, "child", None)
        if child is None:
            child = _OF_THREAD.child = Child()
        try:
            return child(self.work, point)
        except ChildLost:
            _OF_THREAD.child = None
            raise


def perform_points() -> None:
    """Perform point after point of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints is no answer
    while True:
        try:
            work, point = pickle.load(sys.stdin.buffer)
            answer: tuple[Exception | None, Columns | None] = (None, work(point))
        except EOFError:
            return
        except Exception as error:  # of any kind, and also what a pickle names and is missing here; the worker raises it
            answer = (error, None)
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:  # the worker has gone
            os._exit(0)
