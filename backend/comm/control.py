"""Words between a Session and its workers, one JSON object per line on a unix socket of this host.

session --allow n, pause, read, write--> worker
        <--loss, done-------------------

Tensors do not travel here: batches and states lie in files of the run's folder, which workers map into memory.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Words", "address", "listen", "meet"]

_HELLO_S = 120.0


def address(run_id: str) -> str:
    """Abstract: nothing is left on disk."""
    return f"\0regista-{run_id}-session"


class Words:
    """One end of a conversation.  ``hear`` is called with each word, on a thread of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._saying = threading.Lock()

    def start(self, hear: Callable[[Mapping[str, Any]], None]) -> None:
        threading.Thread(target=self._listen, args=(hear,), daemon=True, name="words").start()

    def say(self, **word: Any) -> None:
        """Raises OSError: the other end is gone."""
        with self._saying:
            self._connection.sendall(json.dumps(word).encode() + b"\n")

    def close(self) -> None:
        self._connection.close()

    def _listen(self, hear: Callable[[Mapping[str, Any]], None]) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    hear(json.loads(line))
        except (OSError, ValueError):
            pass  # it broke in the midst of a word


def listen(run_id: str, ranks: int) -> socket.socket:
    """Where the workers of a run find their session."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address(run_id))
    listener.listen(ranks)
    return listener


def meet(run_id: str) -> Words:
    """A worker's end.  Raises OSError: there is no session."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_HELLO_S)
    connection.connect(address(run_id))
    connection.settimeout(None)
    return Words(connection)
