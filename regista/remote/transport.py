"""HTTP to a server, over a unix socket or TCP, with Python's own library: answers of limited size, errors of our one family."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.reading.parsing import parse_json
from regista.wire.result import error_of

__all__ = ["ServerGone", "Transport"]

_MOST_BYTES = 2 * 1024**3
_MOST_JSON = 256 * 1024**2
_MOST_LINE = 1 << 20
_PIECE = 1 << 20
_SILENCE_S = 60.0
"""A server says every 15 s that it is alive."""


class ServerGone(InvalidFile):
    """The server does not answer (any more)."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Transport:
    """Args: url: ``unix:/path/of/socket`` or ``http://host:port``.   token: for TCP.   timeout_s: of one answer.

    Raises:
        Unsupported: another kind of URL.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 60.0) -> None:
        self.url, self._token, self._timeout_s = url, token, timeout_s
        self._path = url.removeprefix("unix:").removeprefix("//") if url.startswith("unix:") else ""
        parts = urlsplit(url)
        if not self._path and (parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/")):
            raise Unsupported(
                f"{url!r} is no address of a server; write unix:/path/of/socket or http://host:port, as 'regista serve' prints it"
            )
        self._host, self._port = parts.hostname or "", parts.port if not self._path else None

    def json(self, method: str, path: str, data: object = None) -> Any:
        """The data of an answer.

        Raises:
            RegistaError: the server's refusal.   ServerGone: it cannot be reached, or went away.
        """
        body = None if data is None else json.dumps(data).encode()
        with closing(self._open(self._timeout_s)) as connection:
            return _data(self._ask(connection, method, path, body, {"content-type": "application/json"}))

    def send(self, path: str, source: Path) -> None:
        """PUT a file.   Raises as json."""
        with source.open("rb") as file, closing(self._open(self._timeout_s)) as connection:
            size = source.stat().st_size
            _data(self._ask(connection, "PUT", path, file, {"content-type": "application/octet-stream", "content-length": str(size)}))

    def fetch(self, path: str) -> bytes:
        """GET a file.   Raises as json."""
        with closing(self._open(self._timeout_s)) as connection:
            answer = self._ask(connection, "GET", path, None, {})
            if answer.status >= 400:
                _data(answer)
            return _read(answer, _MOST_BYTES)

    def events(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, data) of Server-Sent Events until the server ends them.   Raises as json."""
        with closing(self._open(_SILENCE_S)) as connection:
            answer = self._ask(connection, "GET", path, None, {})
            if answer.status >= 400:
                _data(answer)
            name = "message"
            while line := self._line(answer):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    data = parse_json(text.removeprefix("data: "))
                    yield name, data if isinstance(data, dict) else {}

    def _line(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.readline(_MOST_LINE)
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from None

    def _open(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._path:
            return _UnixConnection(self._path, timeout_s)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        shown = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        try:
            try:
                connection.request(method, path, body=body, headers={**headers, **shown})
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise  # else the server has answered before it took all: the answer says why
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> ServerGone:
        return ServerGone(
            f"no server answers at {self.url} ({error or type(error).__name__}); start one with 'regista serve', or leave --server out"
        )


def _read(answer: http.client.HTTPResponse, most: int) -> bytes:
    try:
        data = answer.read(most + 1)
    except (OSError, http.client.HTTPException) as error:
        raise ServerGone(f"the answer of the server was cut short ({error}); ask again") from None
    if len(data) > most:
        raise InvalidFile(f"the answer of the server has more than {most} bytes; ask for something smaller")
    return data


def _data(answer: http.client.HTTPResponse) -> Any:
    text = _read(answer, _MOST_JSON).decode("utf-8", "replace")
    if answer.status == 503:
        raise ServerGone("the server has as many connections as it takes; try again later")
    try:
        data: Any = parse_json(text)
    except InvalidFile:
        said = re.sub(r"\s+", " ", text)[:80]
        raise InvalidFile(f"what answers is no server of regista (status {answer.status}, {said!r}); check the address") from None
    if answer.status >= 400:
        refused = data.get("error") if isinstance(data, dict) else None
        if not isinstance(refused, dict):
            raise InvalidFile(f"what answers is no server of regista (status {answer.status}); check the address")
        raise error_of(str(refused.get("type")), str(refused.get("message")))
    return data
