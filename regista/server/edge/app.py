"""The routes of a server.

GET  /v1/server                     version, limits, counts          PUT  /v1/files/SHA256               the content of a file
POST /v1/requests                   a request -> {"id", "state"}     GET  /v1/files/SHA256               the same
GET  /v1/requests                   the newest                       GET  /v1/requests/ID/events         Server-Sent Events
GET  /v1/requests/ID                state, and what it left          POST /v1/requests/ID/cancel         {"keep_best": false}
POST /v1/files                      a small file -> {"sha256"}       GET  /openapi.json    GET  /         the page
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as Http
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.families import family_names
from regista.server.edge.answers import Refusal, answer, refusal_of
from regista.server.edge.bodies import json_body, pieces
from regista.server.edge.describe import openapi
from regista.server.edge.door import Door
from regista.server.page import PAGE
from regista.server.work import Service
from regista.wire import SERVED, WIRE_VERSION, parse_request

__all__ = ["make_app"]

_LISTED = 100

Endpoint = Callable[[Http], Awaitable[Response]]


def make_app(service: Service, token: str | None, hosts: Collection[str] = ()) -> Door:
    """The application.   token, hosts: see Door."""
    limits = service.limits

    async def about(_: Http) -> Response:
        return answer(
            {
                "regista": WIRE_VERSION,
                "verbs": list(SERVED),
                "limits": {"searches": limits.searches, "request_seconds": limits.request_seconds, "upload_bytes": limits.upload_bytes},
                "counts": service.counts(),
                "families": list(family_names()),
            }
        )

    async def put_file(http: Http) -> Response:
        digest = http.path_params["digest"]
        if service.files.has(digest):
            return answer({"sha256": digest, "kept": True})
        said = http.headers.get("content-length", "")
        size = int(said) if said.isdigit() and len(said) < 20 else limits.upload_bytes
        try:
            service.files.check_room(min(size, limits.upload_bytes))
        except InvalidFile as error:
            raise Refusal(507, error) from None
        upload = service.files.begin(digest)
        try:
            async for piece in pieces(http, limits, limits.upload_bytes):
                upload.add(piece)
            await service.keep(upload)
        finally:
            upload.close()
        return answer({"sha256": digest, "kept": True}, 201)

    async def post_file(http: Http) -> Response:
        data = b"".join([piece async for piece in pieces(http, limits, limits.body_bytes)])
        digest = hashlib.sha256(data).hexdigest()
        upload = service.files.begin(digest)
        try:
            upload.add(data)
            await service.keep(upload)
        finally:
            upload.close()
        return answer({"sha256": digest, "kept": True}, 201)

    async def get_file(http: Http) -> Response:
        path = service.files.path(http.path_params["digest"])
        if not path.is_file():
            raise Refusal(
                404, InvalidFile(f"the file {path.name[:16]} is not on the server (any more); send it, or perform its request again")
            )
        return FileResponse(path, media_type="application/octet-stream", headers={"cache-control": "no-store"})

    async def submit(http: Http) -> Response:
        data = await json_body(http, limits)
        request_id = data.pop("id", None) if isinstance(data, dict) else None
        if request_id is not None and not isinstance(request_id, str):
            raise InvalidFile("id: a text of 32 hexadecimal digits is needed, or none")
        request_id = service.submit(parse_request(data), request_id)
        return answer({"id": request_id, "state": service.status(request_id).state.value}, 202)

    async def listed(_: Http) -> Response:
        return answer({"requests": service.newest(_LISTED)})

    async def status(http: Http) -> Response:
        return answer(_known(service, http).data())

    async def cancel(http: Http) -> Response:
        data = await json_body(http, limits)
        if not isinstance(data, dict) or not isinstance(data.get("keep_best", False), bool) or not set(data) <= {"keep_best"}:
            raise InvalidFile('the body of a cancellation is {"keep_best": true} or {"keep_best": false}')
        found = _known(service, http)
        service.cancel(found.id, keep_best=data.get("keep_best", False))
        return answer({"id": found.id, "state": service.status(found.id).state.value})

    async def events(http: Http) -> Response:
        found, last = _known(service, http), http.headers.get("last-event-id", "")
        after = int(last) if last.isdigit() and len(last) < 10 else -1
        return StreamingResponse(_stream(service, found.id, after), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def description(_: Http) -> Response:
        return answer(openapi())

    routes = [
        Route("/v1/server", _guarded(about)),
        Route("/v1/files", _guarded(post_file), methods=["POST"]),
        Route("/v1/files/{digest}", _guarded(put_file), methods=["PUT"]),
        Route("/v1/files/{digest}", _guarded(get_file)),
        Route("/v1/requests", _guarded(submit), methods=["POST"]),
        Route("/v1/requests", _guarded(listed)),
        Route("/v1/requests/{id}", _guarded(status)),
        Route("/v1/requests/{id}/events", _guarded(events)),
        Route("/v1/requests/{id}/cancel", _guarded(cancel), methods=["POST"]),
        Route("/openapi.json", _guarded(description)),
        *(Route(path, _asset(content, kind)) for path, (content, kind) in PAGE.items()),
    ]
    return Door(Starlette(routes=routes, exception_handlers={HTTPException: _unrouted}), token, hosts)


def _known(service: Service, http: Http):  # type: ignore[no-untyped-def]
    try:
        return service.status(http.path_params["id"])
    except InvalidFile as error:
        raise Refusal(404, error) from None


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Every error is an answer of one form."""

    async def guarded(http: Http) -> Response:
        try:
            return await endpoint(http)
        except Exception as error:
            return refusal_of(error)

    return guarded


def _asset(content: bytes, kind: str) -> Endpoint:
    async def asset(_: Http) -> Response:
        return Response(content, headers={"cache-control": "no-cache"}, media_type=kind)

    return asset


async def _unrouted(http: Http, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    return refusal_of(
        Refusal(code, Unsupported(f"{http.method} {http.url.path[:80]} is nothing that a server does; /openapi.json lists what it does"))
    )


async def _stream(service: Service, request_id: str, after: int) -> AsyncIterator[bytes]:
    async for event in service.events(request_id, after):
        if event.name == "alive":
            yield b": alive\n\n"
            continue
        yield f"id: {event.number}\nevent: {event.name}\ndata: {json.dumps(event.data)}\n\n".encode()
