"""A process that reads the files of its request, of the system and of the installation, writes into its request's folder, and starts nothing.

Python's audit events say what is opened before it is opened.  This catches names of files inside of files (a job's cluster, say) and what code
of Python does by mistake; it is no wall against machine code.  [PEP 578]
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

__all__ = ["confine"]

_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/dev/null",
    "/dev/urandom",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/fonts",
)
_FORBIDDEN = frozenset(
    {
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "os.symlink",
        "os.link",
        "pty.spawn",
    }
)
_CHANGES = frozenset({"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "shutil.rmtree"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def confine(writable: Sequence[Path], readable: Sequence[Path] = ()) -> None:
    """Confine this process until it ends.

    Args:
        writable: folders that may be read and written.   readable: folders that may be read besides the system's and Python's.
    """
    installed = [*map(Path, (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path))]
    started = os.getcwd()  # which 'python -m' puts among the places of modules: it may be the user's home
    installed = [path for path in installed if str(path) not in ("", ".", started)] + [Path(__file__).parents[3]]
    written = tuple(os.path.realpath(path) + os.sep for path in writable)
    compiled = tuple(os.path.realpath(path) + os.sep for path in installed)
    read = (*written, *compiled, *(os.path.realpath(path) + os.sep for path in readable), *(f"{path}{os.sep}" for path in _SYSTEM))

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = (*arguments, 0, 0)[:3]
            if not isinstance(path, str | bytes) or not path:
                return
            real = os.path.realpath(os.fsdecode(path))
            writes = isinstance(flags, int) and bool(flags & _WRITES)
            cache = real.startswith(compiled) and "__pycache__" in real
            if real.startswith(written) or real == "/dev/null" or (writes and cache) or (not writes and f"{real}{os.sep}".startswith(read)):
                return
            raise PermissionError(
                1, f"a request of a server may not {'write' if writes else 'read'} this file of its host", os.fsdecode(path)
            )
        if event in _FORBIDDEN:
            raise PermissionError(f"a request of a server starts no processes and opens no connections ({event})")
        if event in _CHANGES:
            for path in arguments[: 2 if event == "os.rename" else 1]:
                if not isinstance(path, str | bytes):
                    continue
                real = os.path.realpath(os.fsdecode(path)) + os.sep
                if not real.startswith(written) and not (real.startswith(compiled) and "__pycache__" in real):
                    raise PermissionError(1, "a request of a server may not change this file of its host", os.fsdecode(path))

    sys.addaudithook(watch)
