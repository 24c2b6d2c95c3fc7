"""What a process may ask the store for, and what it answers: JSON of frozen values, checked field by field (planner.ir.text)."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from planner.ir.errors import InvalidFile
from planner.ir.text import canonical, decode

__all__ = [
    "Add",
    "Answer",
    "Check",
    "CompareSet",
    "Delete",
    "End",
    "Get",
    "Join",
    "Leave",
    "NumKeys",
    "Request",
    "Set",
    "Wait",
    "bytes_of",
    "from_bytes",
    "read_answer",
    "read_request",
    "text_of",
]

_KEY_CHARACTERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """The value, as soon as there is one."""

    key: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    keys: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    key: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSet:
    """``desired`` where the value is ``expected`` (empty: where there is none)."""

    key: str
    expected: str
    desired: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NumKeys:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """This connection is that of a launcher: when it breaks before it leaves, the run is over for all."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run is over for all launchers, and why."""

    why: str


Request = Set | Get | Wait | Check | Add | CompareSet | Delete | NumKeys | Join | Leave | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """error: why not.   late: because the time was over.   value: base64."""

    value: str = ""
    number: int = 0
    error: str = ""
    late: bool = False


def text_of(value: Request | Answer) -> bytes:
    return canonical(value).encode()


def read_request(payload: bytes) -> Request:
    """Raises InvalidFile: not JSON, or not one of the requests."""
    request = decode(Request, _json(payload), "request")
    for key in _keys(request):
        if not 0 < len(key) <= _KEY_CHARACTERS:
            raise InvalidFile(f"a key of {len(key)} characters; keys have 1 to {_KEY_CHARACTERS}")
    return request  # type: ignore[no-any-return]


def read_answer(payload: bytes) -> Answer:
    """Raises InvalidFile."""
    return decode(Answer, _json(payload), "answer")  # type: ignore[no-any-return]


def _keys(request: Request) -> tuple[str, ...]:
    match request:
        case Set(key=key) | Get(key=key) | Add(key=key) | CompareSet(key=key) | Delete(key=key):
            return (key,)
        case Wait(keys=keys) | Check(keys=keys):
            return keys
    return ()


def _json(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"a message of the store is no JSON ({error})") from error


def from_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def bytes_of(text: str) -> bytes:
    """Raises InvalidFile: not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidFile(f"a value of the store is not base64 ({error})") from error
