"""regista --server URL [--token FILE] VERB ...: the verb as without --server, performed by the server; files, output and exit code are its own.

Ctrl-C leaves the request running, and says how to come back:  regista --server URL attach ID;  the other words are cancel ID, finish ID, requests.
"""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from planner.ir.errors import RegistaError
from planner.ir.units import show_s
from regista.remote.asked import Asked
from regista.targets import save_bytes
from regista.verbs.arguments import Usage
from regista.verbs.screen import output_console
from regista.wire import Outcome

__all__ = ["is_remote", "perform_remote"]

_WORDS = ("attach", "cancel", "finish", "requests")


def is_remote(argv: Sequence[str]) -> bool:
    return argv[:1] == ["--server"] or bool(argv and argv[0].startswith("--server="))


def perform_remote(argv: Sequence[str]) -> int:
    """Perform what was typed, ``--server`` included; returns the exit code.

    Raises:
        RegistaError: the refusal of the verb or of the server.   KeyboardInterrupt: with how to come back.
    """
    from regista.remote.asked import asked_of
    from regista.remote.connection import connect

    url, rest = _taken("--server", list(argv))
    token, rest = _taken("--token", rest) if rest and rest[0].split("=")[0] == "--token" else (None, rest)
    if not rest:
        raise Usage(f"--server {url}: a verb is needed after it, or one of {', '.join(_WORDS)}")
    verb, *typed = rest
    again = f"regista --server {url}{'' if token is None else f' --token {token}'}"
    if verb in _WORDS:
        return _word(verb, typed, connect(str(url), token=token), again)
    asked = asked_of(verb, typed, min(max(20, output_console().width), 1000))
    connection = connect(str(url), token=token)
    request_id = uuid.uuid4().hex
    # From here on the server may have it, whether or not we have read its answer.
    with _left_running(request_id, again):
        connection.submit(asked, request_id)
        outcome = _followed(connection, request_id, "--json" in typed)
    return _shown(connection, verb, asked, outcome, "--json" in typed)


def _taken(option: str, argv: list[str]) -> tuple[str, list[str]]:
    _, equals, value = argv[0].partition("=")
    if equals:
        return value, argv[1:]
    if len(argv) < 2:
        raise Usage(f"{option} needs a value after it")
    return argv[1], argv[2:]


def _followed(connection: Any, request_id: str, as_json: bool) -> Outcome:
    from rich.console import Console

    quiet = as_json or not sys.stderr.isatty()
    with nullcontext() if quiet else Console(stderr=True).status("waiting ...") as line:
        told = None if line is None else lambda data: line.update(_text(data))
        outcome: Outcome = connection.wait(request_id, told)
        return outcome


@contextmanager
def _left_running(request_id: str, again: str) -> Iterator[None]:
    """Ctrl-C within leaves the request to the server, and says how to come back."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"request {request_id} goes on; '{again} attach {request_id}' comes back to it, 'finish' takes its best so far, 'cancel' ends it"
        ) from None


def _text(data: dict[str, Any]) -> str:
    best = data.get("best_s")
    bound = show_s(data["bound_s"]) if data.get("bound_s") is not None else "?"
    found = "no plan yet" if best is None else f"best {show_s(best)}"
    gap = data.get("gap")
    return (
        f"searching: {found}, lower bound {bound}{'' if gap is None or math.isinf(gap) else f', gap {gap:.2%}'}, Ctrl-C leaves it running"
    )


def _shown(connection: Any, verb: str, asked: Asked, outcome: Outcome, as_json: bool) -> int:
    if outcome.error:
        sys.stderr.write(asked.local_text(outcome.stderr))
        print(f"regista {verb}: {asked.local_text(outcome.message)}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": {"type": outcome.error, "message": asked.local_text(outcome.message)}}), flush=True)
        return outcome.code or 2
    targets = {name: Path(asked.local_name(name)) for name in outcome.files}
    for name, content in connection.files(outcome):
        save_bytes(targets[name], content)
    sys.stderr.write(asked.local_text(outcome.stderr))
    sys.stdout.write(asked.local_text(outcome.stdout))
    if as_json:
        print(asked.local_text(json.dumps(outcome.result, indent=1, allow_nan=False)))
    sys.stdout.flush()
    return outcome.code


def _word(word: str, typed: Sequence[str], connection: Any, again: str) -> int:
    if word == "requests":
        for one in connection.requests():
            print(f"{one['id']}  {one['state']:<9}  {one['verb']}")
        return 0
    if len(typed) != 1:
        raise Usage(f"'{again} {word}' needs the id of one request; '{again} requests' lists them")
    request_id = typed[0]
    if word != "attach":
        connection.cancel(request_id, keep_best=word == "finish")
        if word == "cancel":
            print(f"request {request_id} was cancelled")
            return 0
    with _left_running(request_id, again):
        outcome = _followed(connection, request_id, as_json=False)
    if outcome.error:
        raise RegistaError(f"request {request_id}: {outcome.message}")
    asked = Asked(request=connection.request(request_id), sent={}, left={})
    return _shown(connection, asked.request.verb, asked, outcome, as_json=False)
