"""A child process that performs requests, one after the other, and keeps what it works out for the next of them.

parent -> child   {"perform": ID, "request": {...}, "work": FOLDER, "models": {...}}      {"end": ID}: the search takes the best it has
child -> parent   {"progress": ID, ...}      {"ended": ID}: outcome.json lies in the folder

Messages are JSON of at most a few KiB; nothing is pickled.  When the parent's end of the pipe closes, the process ends.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from planner.ir.text import canonical
from regista.server.work.confined import confine
from regista.server.work.perform import perform
from regista.verbs.surroundings import Surroundings
from regista.wire import parse_request

if TYPE_CHECKING:
    from planner.parallelism.memory import SearchMemory

__all__ = ["PRELOADED", "worker_main"]

PRELOADED = ("regista.api", "regista.analysis.whatif", "regista.server.work.worker")
"""What the fork server imports before it forks."""

_MOST_MESSAGE = 1 << 22
_KEPT_MODELS, _KEPT_PROGRAMS = 4, 16
_TELL_EVERY_S = 0.2


class _Bounded(OrderedDict[Any, Any]):
    """The entries that were used last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __getitem__(self, key: object) -> Any:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.popitem(last=False)


def worker_main(pipe: Connection, folder: str, confined: bool) -> None:
    """The body of the process.

    Args:
        folder: the server's; requests are performed beneath it.   confined: see confine; a run needs processes and sockets.
    """
    from planner.solve.time_limit import Cancel
    from regista.programs import keeping_programs

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _first_to_go()
    root = Path(folder)
    for name in ("tmp", "state", "matplotlib"):
        (root / "cache" / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {
        "TMPDIR": str(root / "cache/tmp"),
        "XDG_STATE_HOME": str(root / "cache/state"),
        "MPLCONFIGDIR": str(root / "cache/matplotlib"),
    }
    if confined:
        confine([root / "requests", root / "cache"])
    waiting: SimpleQueue[tuple[dict[str, Any], Cancel]] = SimpleQueue()
    cancels: dict[str, Cancel] = {}
    Thread(target=_listen, args=(pipe, waiting, cancels, Cancel), daemon=True).start()
    memories = _Bounded(_KEPT_MODELS)
    with keeping_programs(_Bounded(_KEPT_PROGRAMS)):
        while True:
            message, cancel = waiting.get()
            request_id = message["perform"]
            work, models = Path(message["work"]), message["models"]
            around = Surroundings(
                tell=_teller(pipe, request_id),
                cancel=cancel,
                memory_of=lambda model, models=models: _memory(memories, model, models),  # type: ignore[misc]
                columns=message["request"]["columns"],
            )
            outcome = perform(parse_request(message["request"]), work, root / "variables", models, around)
            (work / "outcome.json").write_text(canonical(outcome.data()), encoding="utf-8")
            cancels.pop(request_id, None)
            _say(pipe, {"ended": request_id})


def _memory(memories: _Bounded, model: str, models: dict[str, str]) -> SearchMemory:
    from planner.parallelism.memory import SearchMemory

    key = model, models.get(model, "")  # a program that came along lies in a folder named by its content
    if key not in memories:
        memories[key] = SearchMemory()
    found: SearchMemory = memories[key]
    return found


def _listen(pipe: Connection, waiting: SimpleQueue[Any], cancels: dict[str, Any], make: type) -> None:
    for message in _messages(pipe):
        if "perform" in message:
            cancels[message["perform"]] = make()
            waiting.put((message, cancels[message["perform"]]))
        elif (cancel := cancels.get(message["end"])) is not None:
            cancel.cancel()
    os._exit(0)


def _messages(pipe: Connection) -> Iterator[dict[str, Any]]:
    while True:
        try:
            yield json.loads(pipe.recv_bytes(_MOST_MESSAGE))
        except (EOFError, OSError):
            return


def _say(pipe: Connection, message: dict[str, object]) -> None:
    try:
        pipe.send_bytes(json.dumps(message).encode())
    except OSError:
        os._exit(0)


def _teller(pipe: Connection, request_id: str) -> Any:
    began = said = monotonic()
    last: tuple[float, float] = (math.nan, math.nan)

    def tell(best_s: float, bound_s: float, seconds: float, shape: str) -> None:
        nonlocal said, last
        now = monotonic()
        if (best_s, bound_s) == last or (now - said < _TELL_EVERY_S and not math.isnan(last[0]) and best_s == last[0]):
            return
        said, last = now, (best_s, bound_s)
        known = math.isfinite(best_s) and best_s > 0
        _say(
            pipe,
            {
                "progress": request_id,
                "best_s": best_s if math.isfinite(best_s) else None,
                "bound_s": max(bound_s, 0.0) if math.isfinite(bound_s) else None,
                "gap": max(0.0, best_s - bound_s) / best_s if known and math.isfinite(bound_s) else None,
                "shape": shape,
                "seconds": now - began,
            },
        )

    return tell


def _first_to_go() -> None:
    """Where the host runs out of memory, the kernel ends a worker before the server."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    except OSError as error:
        print(f"note: {error}, so the kernel may end the server before its workers", file=sys.stderr)
