"""Who may come in: a bearer token wherever others than the user can reach the socket, and no page of another site in the user's browser.

A browser lets pages of other sites send requests to 127.0.0.1, and a name of theirs may be made to point there, so ``Host`` and ``Origin`` are
compared with the address that the server listens at.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from planner.ir.errors import Untrusted
from regista.server.edge.answers import Refusal, refusal_of

__all__ = ["Door"]

_OPEN = {"/", "/page.css", "/page.js"}
_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
     b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Door:
    """Stands before all routes.

    Args:
        token: what has to be shown; None: the socket is the user's alone.   hosts: what ``Host`` may be; empty: anything.
    """

    app: ASGIApp
    token: str | None
    hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
                message = {**message, "headers": [*given, *_HEADERS]}
            await send(message)

        if (refused := self._refused(scope["path"], headers)) is not None:
            await refusal_of(refused)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def _refused(self, path: str, headers: dict[str, str]) -> Refusal | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts and host not in self.hosts:
            return Refusal(
                403, Untrusted(f"this server does not answer for the host {host[:80]!r}; ask it at {' or '.join(sorted(self.hosts))}")
            )
        if origin is not None and origin.partition("://")[2] != host:
            return Refusal(403, Untrusted(f"a page of {origin[:80]!r} may not ask this server; open the server's own page"))
        if self.token is None or path in _OPEN:
            return None
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), self.token.encode()):
            return None
        said = "a wrong token" if shown else "no token"
        return Refusal(
            401, Untrusted(f"{said} came with the request; 'regista serve' prints the file that holds the token, --token FILE sends it")
        )
