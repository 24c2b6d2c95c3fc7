"""Connections of clients that mean ill or are gone: they are let go, and the others are answered."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from planner.ir.errors import InvalidFile
from regista.server.edge.describe import openapi
from regista.server.edge.door import Door
from regista.server.edge.listen import Address, open_socket, serve
from regista.server.limits import Limits
from regista.server.work import Service
from regista.wire import SERVED, Request, Role, State

LIMITS = replace(Limits(), header_seconds=1.0, unread_seconds=0.3, connections=4)


async def long_or_short(scope: object, receive: object, send: object) -> None:
    """An answer of 64 MiB to /long, a short one to the rest."""
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    for _ in range(64 if scope["path"] == "/long" else 0):  # type: ignore[index]
        await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"short"})  # type: ignore[operator]


@pytest.fixture
def port() -> Iterator[int]:
    listener = open_socket(Address())
    loop, ready = asyncio.new_event_loop(), threading.Event()
    task = loop.create_task(serve(long_or_short, listener, LIMITS, ready.set))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.gather(task, return_exceptions=True)))
    thread.start()
    assert ready.wait(30)
    yield listener.getsockname()[1]
    loop.call_soon_threadsafe(task.cancel)
    thread.join(30)
    listener.close()


def short(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/")
    answer = connection.getresponse().read()
    connection.close()
    return answer


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def ended(one: socket.socket) -> bool:
    """Whether the server has closed it; what came before is read first."""
    try:
        while one.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_an_answer_that_nobody_reads_is_given_up_and_others_are_answered(port: int):
    silent = connected(port)
    silent.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(0.6)
    assert short(port) == b"short" and ended(silent)


def test_connections_beyond_twice_the_limit_are_closed_at_once_and_others_are_answered_once_they_are_gone(port: int):
    many = [connected(port) for _ in range(20)]
    began = time.monotonic()
    assert all(ended(one) for one in many[2 * LIMITS.connections :])
    assert time.monotonic() - began < LIMITS.header_seconds / 2
    assert all(ended(one) for one in many)  # no header came in time
    assert short(port) == b"short"


OURS = {"host": "127.0.0.1:8750"}
SHOWN = {"authorization": "Bearer " + "t" * 40}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/server", {**OURS, **SHOWN}, 200),
        ("/v1/server", {**OURS, **SHOWN, "origin": "http://127.0.0.1:8750"}, 200),
        ("/", OURS, 200),
        ("/v1/server", OURS, 401),
        ("/openapi.json", OURS, 401),
        ("//", OURS, 401),
        ("/v1/server", {**OURS, "authorization": "Bearer " + "t" * 39}, 401),
        ("/v1/server", {**OURS, "authorization": "Bearer " + "\xe9" * 40}, 401),
        ("/v1/server", {**OURS, "authorization": "Basic " + "t" * 40}, 401),
        ("/", {}, 403),
        ("/", {"host": "evil.example:8750"}, 403),  # a name that was made to point here
        ("/v1/server", {"host": "127.0.0.1.evil.example:8750", **SHOWN}, 403),
        ("/v1/requests", {**OURS, **SHOWN, "origin": "null"}, 403),
        ("/v1/requests", {**OURS, **SHOWN, "origin": "https://evil.example"}, 403),
        ("/v1/requests", {**OURS, **SHOWN, "origin": "http://127.0.0.1:8751"}, 403),
    ],
)
def test_who_comes_in(path: str, headers: dict[str, str], status: int):
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    door = Door(app, "t" * 40, ("127.0.0.1:8750", "localhost:8750"))
    scope = {"type": "http", "path": path, "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]}
    asyncio.run(door(scope, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == status
    names = [name for name, _ in sent[0]["headers"]]
    assert {b"content-security-policy", b"x-content-type-options", b"referrer-policy", b"cross-origin-resource-policy"} <= set(names)


def test_the_description_names_every_verb_and_every_argument_that_is_taken():
    described = openapi()
    schemas = described["components"]["schemas"]
    for verb, roles in SERVED.items():
        arguments = schemas[f"Request-{verb}"]["properties"]["arguments"]["properties"]
        assert set(arguments) == {name for name, role in roles.items() if role is not Role.REFUSED}
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)):
        assert name in schemas


def test_a_socket_that_a_server_listens_at_is_not_taken_from_it(tmp_path: Path):
    first = open_socket(Address(path=tmp_path / "s"))
    with pytest.raises(InvalidFile, match="another server listens at"):
        open_socket(Address(path=tmp_path / "s"))
    first.close()  # as of a server that was killed: the name stays
    open_socket(Address(path=tmp_path / "s")).close()
    (tmp_path / "s").unlink()
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidFile, match="is no socket"):
        open_socket(Address(path=tmp_path / "s"))


def test_a_result_that_the_disk_does_not_take_ends_its_request_with_a_message_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        service = Service(tmp_path, LIMITS)
        one, other = (service.submit(Request(verb="clusters")) for _ in range(2))
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(service.requests, "end", lambda *_: (_ for _ in ()).throw(full))
        service.cancel(one)
        found = service.status(one)
        assert found.state is State.FAILED and found.outcome is not None
        assert "No space left on device" in found.outcome.message
        (tmp_path / "requests" / ("0" * 32)).mkdir()  # one that cannot be read
        assert {row["id"]: row["state"] for row in service.newest(10)} == {one: "failed", other: "queued"}
        (tmp_path / "requests" / ("0" * 32)).rmdir()
        monkeypatch.setattr(service.requests, "outcome", lambda _: pytest.fail("what has ended is read once"))
        assert len(service.newest(10)) == 2

    asyncio.run(story())


def test_a_client_that_waits_hears_that_the_server_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regista.server.work.service._ALIVE_S", 0.01)

    async def story() -> list[str]:
        service = Service(tmp_path, LIMITS)
        names = []
        async for event in service.events(service.submit(Request(verb="clusters"))):
            names.append(event.name)
            if len(names) == 3:
                break
        return names

    assert asyncio.run(story()) == ["state", "alive", "alive"]
