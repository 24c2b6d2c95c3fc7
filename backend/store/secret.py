"""The secret that the launchers of a run on several hosts share: in a file or in the environment, never on a command line, which all users see."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from planner.ir.errors import InvalidFile, Unsupported

__all__ = ["ENVIRONMENT_VARIABLE", "MOST_SECRET_BYTES", "read_secret"]

ENVIRONMENT_VARIABLE = "REGISTA_SECRET"
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 16, 4096
_WAY_OUT = "make one with: python -c 'import secrets; print(secrets.token_hex())' > FILE; chmod 600 FILE"


def read_secret(path: str | None, environment: Mapping[str, str] = os.environ) -> bytes:
    """The secret in a file of this user, or in REGISTA_SECRET where no file is given.

    Raises:
        Unsupported: neither is given.   InvalidFile: the file cannot be read, others can read it too, or it is too short or too long.
    """
    if path is None:
        if not (text := environment.get(ENVIRONMENT_VARIABLE, "").strip()):
            raise Unsupported(
                f"several hosts need a secret that they share, so that no stranger joins them: give --secret FILE or {ENVIRONMENT_VARIABLE}; "
                f"{_WAY_OUT}"
            )
        return _checked(text.encode(), ENVIRONMENT_VARIABLE)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InvalidFile(f"secret {path} is no regular file; {_WAY_OUT}")
            if about.st_mode & 0o077:
                raise InvalidFile(f"secret {path} can be read by others (mode {about.st_mode & 0o777:o}); chmod 600 {path}")
            return _checked(file.read(MOST_SECRET_BYTES + 1).strip(), f"secret {path}")
    except OSError as error:
        raise InvalidFile(f"secret {path} cannot be read ({error.strerror}); {_WAY_OUT}") from error


def _checked(secret: bytes, name: str) -> bytes:
    if not LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise InvalidFile(f"{name} has {len(secret)} bytes; {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} are taken; {_WAY_OUT}")
    return secret
