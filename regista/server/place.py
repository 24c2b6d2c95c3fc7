"""The folder of a server: where it is by default, its lock, its token."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from pathlib import Path

from planner.ir.errors import InvalidFile, Untrusted

__all__ = ["default_folder", "lock_folder", "read_token", "token_of"]


def default_folder() -> Path:
    """$XDG_STATE_HOME/regista/server, by default ~/.local/state/regista/server."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "regista" / "server"


def lock_folder(folder: Path) -> int:
    """Make the folder (mode 0700) and hold its lock until the process ends; returns the open file.

    Raises:
        InvalidFile: it cannot be made, another server has it, or others may write into it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
            raise InvalidFile(f"{folder} belongs to another user, or others may write into it; give a --folder of your own (chmod 700)")
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidFile(f"cannot keep a server's files in {folder} ({error.strerror}); give another --folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InvalidFile(f"another server keeps its files in {folder}; end it, or give another --folder") from None
    return handle


def token_of(folder: Path) -> Path:
    """The file of the server's token, which is made (256 bits, mode 0600) where there is none."""
    path = folder / "token"
    if not path.exists():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path


def read_token(path: Path) -> str:
    """The token of a file that only its owner can read.

    Raises:
        InvalidFile: no such file, or no token in it.   Untrusted: others can read it.
    """
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise Untrusted(f"{path} holds a token and can be read by others; chmod 600 {path}")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: no token can be read ({error}); 'regista serve --tcp' prints where it has put one") from None
    if len(token) < 16 or not token.isprintable() or " " in token:
        raise InvalidFile(f"{path}: a token is one line of at least 16 characters without spaces")
    return token
