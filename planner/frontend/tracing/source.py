"""Where in the user's own code something happened: the innermost frame that is neither torch's, Python's nor ours."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

import planner

__all__ = ["Line", "calling_functions", "calling_line", "line_of_function", "line_that_changes", "raising_line", "shown_line"]

Line = tuple[str, int]
"""A file and a line number."""


def _folders(*paths: str) -> tuple[str, ...]:
    """Each folder as it was reached and as it is: an environment may be a link, and code is named by the way to it."""
    return tuple({os.path.join(form, ""): None for path in paths for form in (os.path.abspath(path), str(Path(path).resolve()))})


_LIBRARIES = _folders(os.path.dirname(torch.__file__), next(iter(planner.__path__)))
_OTHERS = (*_LIBRARIES, *_folders(sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]))

_WHERE_TRACING_BEGINS = os.path.join(os.path.dirname(__file__), "trace.py")


def _is_users(code: CodeType) -> bool:
    name = code.co_filename
    if name.startswith("<"):
        return False
    in_packages = f"{os.sep}site-packages{os.sep}" in name  # beneath Python's own folder, but not Python's
    return not name.startswith(_LIBRARIES if in_packages else _OTHERS)


def calling_line() -> Line | None:
    """The line of the user's code that runs now, beneath the traced step; None when torch alone is there (backward, an nn.Sequential)."""
    frame = next(_users_frames(sys._getframe(1)), None)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def calling_functions(count: int) -> tuple[str, ...]:
    """The innermost functions of the user that run now, beneath the traced step, with their files: ``forward (model.py)``."""
    frames = islice(_users_frames(sys._getframe(1)), count)
    return tuple(f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)})" for frame in frames)


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Those of the user's code beneath the traced step, from ``frame`` outwards."""
    while frame is not None and frame.f_code.co_filename != _WHERE_TRACING_BEGINS:
        if _is_users(frame.f_code):
            yield frame
        frame = frame.f_back


def raising_line(error: BaseException) -> Line | None:
    """The innermost line of the user's code through which ``error`` came."""
    line: Line | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if _is_users(trace.tb_frame.f_code):
            line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return line


def line_that_changes(state: Callable[[], object], run: Callable[[], object]) -> Line | None:
    """The user's line during which ``state()`` changes for the first time in ``run()``, whose errors do not matter; None: it is torch's."""
    before = state()
    running: Line | None = None
    changing: Line | None = None

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal running, changing
        if not _is_users(frame.f_code):
            return None
        if changing is None and running is not None and state() != before:
            changing = running
        running = frame.f_code.co_filename, frame.f_lineno
        return watch

    outer = sys.gettrace()
    sys.settrace(watch)
    try:
        with suppress(Exception):  # the caller knows the error already; here the line alone is asked for
            run()
    finally:
        sys.settrace(outer)
    return running if changing is None and running is not None and state() != before else changing


def line_of_function(function: Callable[..., object]) -> str:
    """A function as messages name it: its name, its file and its first line."""
    inner = getattr(function, "func", function)  # functools.partial
    inner = getattr(inner, "__func__", inner)
    code = getattr(inner, "__code__", None) or getattr(vars(type(inner)).get("__call__"), "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{name} ({_shown_path(code.co_filename)}:{code.co_firstlineno})" if isinstance(code, CodeType) else name


def shown_line(line: Line | None) -> str:
    """``model.py:14 'y = x * self.count'``; empty without a line."""
    if line is None:
        return ""
    text = linecache.getline(*line).strip()
    return f"{_shown_path(line[0])}:{line[1]}" + (f" '{text}'" if text else "")


def _shown_path(path: str) -> str:
    """Relative to where the user is, if it lies beneath."""
    here = os.path.join(os.getcwd(), "")
    return path.removeprefix(here)
