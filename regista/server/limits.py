"""What a server allows: bytes, seconds, processes."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.units import GIB, MIB

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """searches: how many at once.   request_seconds: of one.   memory_bytes: resident, of the process that performs one.
    upload_bytes: of one file.   body_bytes: of one JSON body.   queued: requests that wait.   kept: ended requests whose results are kept.
    header_seconds: from the begin of a connection, or of its next request, to the end of the header.   idle_seconds: between two pieces of a body.
    body_seconds: of a whole body per 16 MiB.   unread_seconds: of an answer that nobody reads.   connections: that are answered at once; twice as many
    are open.   attempts: of a request whose process was killed.
    """

    searches: int = 2
    request_seconds: float = 3600.0
    memory_bytes: int = 8 * GIB
    upload_bytes: int = 2 * GIB
    body_bytes: int = MIB
    queued: int = 10_000
    kept: int = 2000
    header_seconds: float = 10.0
    idle_seconds: float = 10.0
    body_seconds: float = 60.0
    unread_seconds: float = 30.0
    connections: int = 256
    attempts: int = 3
