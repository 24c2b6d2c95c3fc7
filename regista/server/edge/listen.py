"""Where a server listens: a unix socket of the user, or a TCP port with a token; and for how long it waits for a header."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from planner.ir.errors import InvalidFile, Unsupported
from regista.server.limits import Limits

__all__ = ["Address", "open_socket", "serve"]

_MOST_HEADER = 32 * 1024
_MOST_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """path: of a unix socket; or host and port of TCP (port 0: a free one)."""

    path: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0


def open_socket(address: Address) -> socket.socket:
    """A socket that listens.

    Raises:
        InvalidFile: the address is taken, too long, or cannot be made.
    """
    if address.path is None:
        try:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        except (OSError, OverflowError) as error:
            raise InvalidFile(
                f"cannot listen at {address.host}:{address.port} ({error}); give another --tcp, or --tcp HOST:0 for a free port"
            ) from None
        listener.listen(128)
        return listener
    path = address.path
    if len(os.fsencode(path)) > _MOST_SOCKET_PATH:
        raise InvalidFile(f"{path}: a unix socket's name has at most {_MOST_SOCKET_PATH} bytes; give a shorter --socket")
    try:
        if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidFile(f"{path} is no socket, and is not overwritten; give another --socket")
        if _answers(path):
            raise InvalidFile(f"another server listens at {path}; end it, or give another --socket")
        path.unlink(missing_ok=True)  # of a server that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        raise InvalidFile(f"cannot make the socket {path} ({error.strerror}); give a --socket in a writable folder") from None
    listener.listen(128)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # a server that is busy has no room for another who waits
            return True
        return True


def _protocol(limits: Limits) -> type[H11Protocol]:
    class Impatient(H11Protocol):  # type: ignore[misc]
        """Closes a connection whose next header does not come to its end in time (slow-loris), silent ones included; one whose answer nobody
        reads; and one more than there may be, before a file of the server's is missing for it.
        """

        _impatience: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > 2 * limits.connections:
                transport.abort()
            else:
                self._impatience = self.loop.call_later(limits.header_seconds, self._hurry)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waits = self.cycle is None or self.cycle.response_complete
            if not waits and self._impatience is not None:
                self._impatience.cancel()
                self._impatience = None

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._impatience is None and not self.transport.is_closing():
                self._impatience = self.loop.call_later(limits.header_seconds, self._hurry)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._unread is None:
                self._unread = self.loop.call_later(limits.unread_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for timer in (self._impatience, self._unread):
                if timer is not None:
                    timer.cancel()

        def _hurry(self) -> None:
            self._impatience = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()
                if self._unread is None:  # what was written before is not read, perhaps
                    self._unread = self.loop.call_later(limits.unread_seconds, self.transport.abort)

    return Impatient


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Without uvicorn's handlers of signals, which would end the process by the signal again."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


async def serve(app: ASGIApp, listener: socket.socket, limits: Limits, ready: Callable[[], None] = lambda: None) -> None:
    """Answer until SIGINT or SIGTERM.

    Args:
        ready: called once the server answers.
    """
    if not hasattr(os, "fork"):
        raise Unsupported("a server needs fork, which this system does not have; use Linux")
    config = uvicorn.Config(
        app,
        http=_protocol(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=max(1, int(limits.header_seconds)),
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=_MOST_HEADER,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop)
        except (ValueError, RuntimeError):  # not in the main thread: whoever started the thread ends it
            break
    loop.call_soon(ready)
    await server.serve(sockets=[listener])
