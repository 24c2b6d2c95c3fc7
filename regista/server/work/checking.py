"""Archives from strangers are checked in a process of their own: one that unpacks to more than it seems ends that process, and nobody else waits."""

from __future__ import annotations

import json
import os
import resource
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.units import GIB
from regista.server.store.exported import check_exported
from regista.wire.result import error_of

__all__ = ["check_apart"]

_MEMORY_BYTES, _SECONDS = 2 * GIB, 60


def check_apart(context: ForkServerContext, path: Path, *, memory_bytes: int = _MEMORY_BYTES, seconds: int = _SECONDS) -> None:
    """check_exported, in another process.

    Args:
        memory_bytes: that it may take besides what it starts with.   seconds: of its processor, and twice that of the clock.

    Raises:
        InvalidFile, Untrusted: as check_exported; or it needs more than the limits.
    """
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(theirs, str(path), memory_bytes, seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        said = json.loads(ours.recv_bytes(1 << 20)) if ours.poll(2 * seconds) else None
    except EOFError:
        said = None
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()
    if said is None:
        raise InvalidFile(
            f"the .pt2 could not be checked within {seconds} s and {memory_bytes / GIB:g} GiB, so it was not kept; send a smaller program"
        )
    if said:
        raise error_of(*said)


def _check(pipe: Connection, path: str, memory_bytes: int, seconds: int) -> None:
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + memory_bytes, held + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    said: list[str] = []
    try:
        check_exported(Path(path))
    except RegistaError as error:
        said = [type(error).__name__, str(error)]
    except MemoryError:
        os._exit(1)  # nothing said: the parent says why
    pipe.send_bytes(json.dumps(said).encode())
