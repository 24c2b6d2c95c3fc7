"""The states of a request, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import planner.ir.errors as errors
from planner.ir.errors import InvalidFile, RegistaError

__all__ = ["ENDED", "Outcome", "State", "error_of", "outcome_of"]


class State(Enum):
    """queued -> running -> done, failed or cancelled; back to queued where the process that performed it was killed."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.DONE, State.FAILED, State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a request has left.

    state: done, failed or cancelled.   code: the exit code of the command line.   result: what --json prints, None without one.
    stdout, stderr: what the verb printed.   files: name -> SHA-256 of each file that it left.
    error, message: class and text of the refusal, empty without one.   seconds: of work.   attempts: processes that it took.
    """

    state: State
    code: int = 0
    result: object = None
    stdout: str = ""
    stderr: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    message: str = ""
    seconds: float = 0.0
    attempts: int = 1

    def data(self) -> dict[str, object]:
        """As it is sent and kept."""
        refused = {"error": {"type": self.error, "message": self.message}} if self.error else {}
        return {
            "state": self.state.value,
            "code": self.code,
            "result": self.result,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "files": dict(self.files),
            "seconds": self.seconds,
            "attempts": self.attempts,
        } | refused


def outcome_of(data: Mapping[str, object]) -> Outcome:
    """An outcome from its JSON data.

    Raises:
        InvalidFile: it is none.
    """
    try:
        refused = data.get("error", {"type": "", "message": ""})
        assert isinstance(refused, dict)
        files = data["files"]
        assert isinstance(files, dict)
        return Outcome(
            state=State(data["state"]),
            code=int(str(data["code"])),
            result=data["result"],
            stdout=str(data["stdout"]),
            stderr=str(data["stderr"]),
            files={str(name): str(digest) for name, digest in files.items()},
            error=str(refused["type"]),
            message=str(refused["message"]),
            seconds=float(str(data["seconds"])),
            attempts=int(str(data["attempts"])),
        )
    except (KeyError, ValueError, AssertionError) as error:
        raise InvalidFile(f"the answer of the server is no outcome of a request ({error!r}); use the same regista on both sides") from None


def error_of(kind: str, message: str) -> RegistaError:
    """The error of our family by the name of its class; an OSError of the other side is an InvalidFile here."""
    found = getattr(errors, kind, None) if kind in errors.__all__ else InvalidFile
    assert isinstance(found, type) and issubclass(found, RegistaError)
    return found(message)
