"""Answers in JSON: our errors, each with its HTTP status."""

from __future__ import annotations

import json

from starlette.responses import Response

from planner.ir.errors import InvalidFile, Mismatch, RegistaError, Unsupported, Untrusted

__all__ = ["Refusal", "answer", "refusal_of"]


class Refusal(RegistaError):
    """A refusal with a status of its own."""

    def __init__(self, status: int, error: RegistaError) -> None:
        super().__init__(str(error))
        self.status, self.error = status, error


def answer(data: object, status: int = 200) -> Response:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Response(text, status, {"cache-control": "no-store"}, "application/json")


def refusal_of(error: Exception) -> Response:
    """{"error": {"type", "message"}} of an error; what is none of ours is a fault of the server."""
    status = 500
    match error:
        case Refusal():
            status, error = error.status, error.error
        case Untrusted():
            status = 403
        case Mismatch():
            status = 409
        case Unsupported() | InvalidFile() | RegistaError():
            status = 400
        case OSError():
            status = 507
    kind = type(error).__name__ if isinstance(error, RegistaError | OSError) else "RegistaError"
    message = str(error) if isinstance(error, RegistaError | OSError) else f"the server failed ({type(error).__name__}: {error}); report it"
    return answer({"error": {"type": kind, "message": message}}, status)
