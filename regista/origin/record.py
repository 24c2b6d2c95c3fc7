"""The Plans that this user has made on this machine: a file of digests, one line each.

$XDG_STATE_HOME/regista/plans (default ~/.local/state/regista/plans), folder 0700, file 0600.  A line is the SHA-256 of a Plan's canonical
JSON, so a Plan that somebody else has edited or made is in it only if it is the same to the byte.  [XDG base directory specification]
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from planner.ir.plan import Plan
from planner.ir.text import canonical, encode

__all__ = ["is_recorded", "record"]

_BYTES = 65  # 64 hexadecimal digits and the end of the line
_MOST = 100_000


def record(plan: Plan) -> str:
    """Remember that the Plan was made here; returns why it could not be, empty: it is."""
    if is_recorded(plan):
        return ""
    file = _file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, f"{_digest(plan)}\n".encode())  # one write of one line: two processes at once do not mix theirs
        finally:
            os.close(handle)
    except OSError as error:
        return f"{file} cannot be written ({error.strerror})"
    return ""


def is_recorded(plan: Plan) -> bool:
    """Whether this user made it here.  A file that others can write, or that is a link, says nothing."""
    try:
        handle = os.open(_file(), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as lines:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
            return False
        lines.seek(max(0, about.st_size - _MOST * _BYTES) // _BYTES * _BYTES)  # the newest
        return _digest(plan).encode() in lines.read().split(b"\n")


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "regista" / "plans"


def _digest(plan: Plan) -> str:
    return hashlib.sha256(canonical(encode(plan)).encode()).hexdigest()
