"""What the verbs print: tables and lines on standard output, and a status line on standard error while the work goes on."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, RenderableType
from rich.status import Status

from regista.verbs.fitting import fitted, in_one_style
from regista.verbs.surroundings import surroundings

__all__ = ["Json", "finite", "output_console", "print_parts", "show", "status", "status_text"]

Json = dict[str, object]

_PIPE_COLUMNS = 160
"""A file or a pipe has no width of its own, unless COLUMNS is set; 80 columns would cut the ids short."""


class _OutputConsole(Console):
    """Standard output.  A reader who has gone ('| head') is a BrokenPipeError, which the command line ends in silence."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the reader of this output has gone")


def output_console() -> Console:
    """Standard output, as wide as its terminal; else, where COLUMNS says nothing either, 160 columns."""
    console = _OutputConsole(width=surroundings().columns)
    if surroundings().columns is None and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_COLUMNS
    return console


def show(args: argparse.Namespace, *parts: RenderableType) -> None:
    """Print tables and plain lines on one screen (regista.verbs.fitting), whole with ``--full``, nothing with ``--json``.

    A verb gives its whole answer in one call, what the user asked for first.
    """
    if args.json:
        return
    print_parts(output_console(), parts, full=args.full)


def print_parts(console: Console, parts: Sequence[RenderableType], *, full: bool = False) -> None:
    """The parts of an answer on one screen of the console; ``full``: whole."""
    for part in in_one_style(parts) if full else fitted(parts, console):
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
