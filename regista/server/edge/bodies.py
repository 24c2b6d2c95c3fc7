"""Bodies of requests within limits: their bytes, the time between two pieces, and the time of the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic

from starlette.requests import ClientDisconnect, Request

from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.reading.parsing import parse_json
from planner.ir.units import MIB
from regista.server.edge.answers import Refusal
from regista.server.limits import Limits

__all__ = ["json_body", "pieces"]


async def pieces(request: Request, limits: Limits, most_bytes: int) -> AsyncIterator[bytes]:
    """The body piece by piece.

    Raises:
        Refusal: larger (413), slower (408), or cut short (400).
    """
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > most_bytes:
        raise _too_large(int(said), most_bytes)
    size, began, stream = 0, monotonic(), request.stream()
    while True:
        allowed_s = limits.body_seconds * (1 + size / (16 * MIB))
        try:
            async with asyncio.timeout(min(limits.idle_seconds, began + allowed_s - monotonic())):
                piece = await anext(stream, None)
        except TimeoutError:
            slow = InvalidFile(
                f"the body came too slowly: {size} bytes in {monotonic() - began:.0f} s, nothing for up to {limits.idle_seconds:g} s; send it faster"
            )
            raise Refusal(408, slow) from None
        except ClientDisconnect:
            raise Refusal(400, InvalidFile(f"the body ended after {size} bytes, before its announced end; send it again")) from None
        if piece is None:
            return
        size += len(piece)
        if size > most_bytes:
            raise _too_large(size, most_bytes)
        yield piece


def _too_large(size: int, most: int) -> Refusal:
    return Refusal(
        413, Unsupported(f"the body has {size} bytes or more, this server takes {most}; send less, or start it with larger limits")
    )


async def json_body(request: Request, limits: Limits) -> object:
    """The data of a JSON body.

    Raises:
        Refusal: see pieces; another content type (415).   InvalidFile: no JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, Unsupported(f"the body is {kind[:60] or 'of no content type'}; send application/json"))
    data = b"".join([piece async for piece in pieces(request, limits, limits.body_bytes)])
    try:
        return parse_json(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidFile("the body is no UTF-8; send JSON") from None
    except InvalidFile as error:
        raise InvalidFile(f"the body is {error}; send one JSON object") from None
