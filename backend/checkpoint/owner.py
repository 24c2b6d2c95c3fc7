"""Who holds a folder: its lock, and beside it, in .saving.json, which run that is, started by which process of which host.

lock free, no file                           nobody saves
lock free, a file                            whoever wrote it was killed: the folder is taken over, with a word on it
lock held, launcher lives, or another host   refused at once
lock held, launcher of this host ended       its workers are just ending: worth a wait
lock held, by the run that asks, or no file  worth a wait, too
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoint.folder import make_folder
from planner.ir.errors import InvalidFile
from planner.ir.text import decode, encode, load_json, save_text

__all__ = ["NOBODY", "Owner", "TakenOver", "check_free", "forget", "held", "lock", "owner_of", "saving_run", "unlock"]

_FILE, _KIND, _VERSION = ".saving.json", "saving", 1


class TakenOver(UserWarning):
    """A folder in which a run was saving that ended without a word, so that others may save there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """run: its name.   host: by name, for people.   system: of this boot and its numbers of processes; empty: not to be told.   pid, started: of
    the process that started the run; ``started`` in ticks since the boot, since numbers of processes are used again."""

    run: str = ""
    host: str = ""
    system: str = ""
    pid: int = 0
    started: int = 0

    @classmethod
    def here(cls, run: str) -> Owner:
        """This process, as the one that starts ``run``."""
        pid = os.getpid()
        return cls(run=run, host=socket.gethostname(), system=_system(), pid=pid, started=_started(pid) or 0)

    def lives(self) -> bool | None:
        """Whether the process that started the run lives; None: it is of another host, or this system does not say."""
        if not self.system or self.system != _system():
            return None
        return _started(self.pid) == self.started

    @property
    def text(self) -> str:
        return f"run {self.run}, started by process {self.pid} of host {self.host}"

    def write(self, folder: Path) -> None:
        """Say so in ``folder``; where that cannot be written others wait for the lock in vain, so nothing is refused for it."""
        with suppress(InvalidFile):
            save_text(folder / _FILE, json.dumps({"kind": _KIND, "version": _VERSION, "saving": encode(self)}))

    @staticmethod
    def remove(folder: Path) -> None:
        with suppress(OSError):
            (folder / _FILE).unlink()


NOBODY = Owner()


def owner_of(folder: Path) -> Owner | None:
    """Who has said last that it saves there and has not ended well since; None: nobody, or it cannot be read."""
    try:
        owner = decode(Owner, load_json(folder / _FILE, _KIND, _VERSION).get("saving"), "saving")
    except InvalidFile:
        return None
    assert isinstance(owner, Owner)
    return owner


def lock(folder: Path, timeout_s: float = 10.0, owner: Owner | None = None) -> int:
    """Keep other runs out of a folder.  Returns the handle of the lock, which lasts until it is closed or this process ends in whatever way.

    Args:
        timeout_s: how long to wait for a run that is just ending.   owner: what others are told of who holds it.

    Raises:
        InvalidFile: another run is saving there.
    """
    handle = _locked(folder, fcntl.LOCK_EX, timeout_s, "" if owner is None else owner.run)
    if owner is not None:
        owner.write(folder)
    return handle


def unlock(folder: Path, handle: int) -> None:
    """Let other runs in."""
    Owner.remove(folder)
    os.close(handle)


@contextmanager
def held(folder: Path, owner: Owner) -> Iterator[None]:
    """Keep other runs out of ``folder``, which is made if need be.

    Raises:
        InvalidFile: another run is there, or it cannot be made.
    """
    make_folder(folder)
    handle = lock(folder, owner=owner)
    try:
        yield
    finally:
        unlock(folder, handle)


def forget(folder: Path, owner: Owner) -> None:
    """When a run's workers have ended, in whatever way: nobody is told of it any more."""
    with suppress(OSError):  # there is no such folder, or others are in it by now
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if owner_of(folder) == owner:
                Owner.remove(folder)
        finally:
            os.close(handle)


def check_free(folder: Path, timeout_s: float = 10.0, *, run: str = "") -> None:
    """Before a run starts: nobody else saves into the folder.  One that was killed there is told of (TakenOver).

    Args:
        timeout_s: how long to wait for workers that are just ending.   run: the name of the one that starts, if any of it may be there.

    Raises:
        InvalidFile: another run saves there.
    """
    if not folder.is_dir():
        return
    handle = _locked(folder, fcntl.LOCK_SH, timeout_s, run)
    owner = owner_of(folder)
    os.close(handle)
    if owner is not None and owner.run != run:
        warnings.warn(f"{folder} was held by {owner.text}, which ended without giving it back; it is taken over", TakenOver, stacklevel=2)


def saving_run(folder: Path) -> str:
    """The name of the run that saves into the folder now; empty: none, or it has not said so."""
    if not folder.is_dir():
        return ""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        owner = owner_of(folder)
        return "" if owner is None else owner.run
    finally:
        os.close(handle)
    return ""


def _locked(folder: Path, kind: int, timeout_s: float, run: str) -> int:
    """The handle of a lock of this kind.  Who holds it is waited for where it is this run, has ended, or has not said who it is."""
    handle = os.open(folder, os.O_RDONLY)
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            owner = owner_of(folder)
            stays = owner is not None and owner.run != run and owner.lives() is not False
            if stays or time.monotonic() > end_s:
                os.close(handle)
                who = "" if owner is None else f" ({owner.text}{_doubt(owner, timeout_s)})"
                raise InvalidFile(f"another run is saving into {folder}{who}; wait for its end, or give another folder") from error
            time.sleep(0.1)


def _doubt(owner: Owner, timeout_s: float) -> str:
    match owner.lives():
        case None:
            return ", of which this host cannot tell whether it lives"
        case False:
            return f", which has ended; its workers did not within {timeout_s:g} s"
        case _:
            return ""


def _system() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the boot [proc(5): field 22]; None: there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
