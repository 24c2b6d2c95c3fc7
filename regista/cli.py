"""The command line.  Every verb has --json for machines; every refusal is one message and exit code 2."""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence

from planner.ir.errors import RegistaError
from regista.origin import trusting
from regista.remote import command
from regista.server import verb as serve
from regista.verbs import VERBS, Verb
from regista.verbs.parsing import VerbParser, add_verbs
from regista.verbs.screen import finite

__all__ = ["build_parser", "main"]

_VERBS = (*VERBS, Verb(name="serve", module=serve, help="plan and answer for clients: a server with a page"))

_YOUNG_PER_FULL = 100
"""Collections of young objects per full collection; Python has 10.  Loading torch makes half a million objects that stay, and full collections
walked through them for 0.3 s of a processor [measured: 2026-11-28]."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = VerbParser(
        prog="regista",
        allow_abbrev=False,
        description="Plan, predict and perform distributed training: an nn.Module and a cluster become one Plan of actors and registers, "
        "which is simulated, run by real processes, and compared.",
        epilog="a first look: regista demo.   Then: regista plan zoo:gpt --cluster local:2 -o plan.json",
    )
    add_verbs(parser, _VERBS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code (0 done, 1 a sweep that breaks its claim, 2 refused, 130 interrupted)."""
    if argv is None:
        gc.set_threshold(*gc.get_threshold()[:2], _YOUNG_PER_FULL)
        # At the exit Python looks for garbage in all that torch has made: 0.3 s of a processor, to free what ends with the process
        # [measured: from 0.43 to 0.12 s, 2026-11-29].
        atexit.register(gc.freeze)
    given = list(sys.argv[1:] if argv is None else argv)
    # Read before the arguments are, which may be what is refused.
    as_json = "--json" in given
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Under LANG=C a terminal takes ASCII only: what it cannot show is escaped.
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _perform(given)
    except (RegistaError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output has gone ('| head'): end in silence, also when Python flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return _refuse(given, as_json, type(error).__name__, str(error), 2)
    except KeyboardInterrupt as stop:
        return _refuse(given, as_json, "Interrupted", str(stop) or "interrupted", 130)


def _open_closed() -> None:
    """Standard streams that were closed ('>&-') are /dev/null: nothing else gets their numbers, and nobody meets None."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _perform(argv: list[str]) -> int:
    if command.is_remote(argv):
        return command.perform_remote(argv)
    args = build_parser().parse_args(argv)
    with trusting(getattr(args, "trust", False)):
        result = next(verb for verb in _VERBS if verb.name == args.verb).perform(args)
    if args.json:
        print(json.dumps(finite(result), indent=1, allow_nan=False))
    sys.stdout.flush()  # while a reader who has gone can still be met
    return 1 if args.verb == "sweep" and result["failed"] else 0


def _refuse(argv: Sequence[str], as_json: bool, kind: str, message: str, code: int) -> int:
    verb = f" {argv[0]}" if argv and not argv[0].startswith("-") else ""
    print(f"regista{verb}: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"type": kind, "message": message}}), flush=True)
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """One line, no source code: only our own warnings are for the user."""
    if category.__module__.split(".")[0] in ("regista", "backend", "planner", "simulator", "zoo"):
        print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
