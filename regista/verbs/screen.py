"""What the verbs print: tables and lines on standard output, and a status line on standard error while the work goes on."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, RenderableType
from rich.status import Status

from regista.verbs.surroundings import surroundings

__all__ = ["Json", "finite", "output_console", "show", "status", "status_text"]

Json = dict[str, object]

_PIPE_COLUMNS = 160
"""A file or a pipe has no width of its own; 80 columns would cut the ids short."""


class _OutputConsole(Console):
    """Standard output.  A reader who has gone ('| head') is a BrokenPipeError, which the command line ends in silence."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the reader of this output has gone")


def output_console() -> Console:
    """Standard output, at least 160 columns wide where it is no terminal."""
    console = _OutputConsole(width=surroundings().columns)
    if surroundings().columns is None and not console.is_terminal:
        console.width = max(console.width, _PIPE_COLUMNS)
    return console


def show(args: argparse.Namespace, *parts: RenderableType) -> None:
    """Print tables and plain lines, nothing with ``--json``."""
    if args.json:
        return
    console = output_console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(part)


def status(args: argparse.Namespace, text: str) -> AbstractContextManager[Status | None]:
    """A status line while a block of work goes on; none with ``--json``."""
    return nullcontext() if args.json else Console(stderr=True).status(text)


def status_text(line: Status | None) -> Callable[[str], None]:
    """What changes the text of a status line; does nothing where there is no line."""

    def change(text: str) -> None:
        if line is not None:
            line.update(text)

    return change


def finite(data: object) -> object:
    """The same data with null for nan and infinity (the loss of a run that diverged), which JSON does not have."""
    match data:
        case float():
            return data if math.isfinite(data) else None
        case dict():
            return {key: finite(value) for key, value in data.items()}
        case list() | tuple():
            return [finite(value) for value in data]
    return data
