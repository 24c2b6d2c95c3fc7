"""Memory that processes of one host share by its descriptor: it has no name, so it is gone when the last process that maps it has ended."""

from __future__ import annotations

import os

__all__ = ["allocated"]


def allocated(name: str, size_bytes: int) -> int:
    """Allocate memory and return its descriptor.

    Every page is taken at once, so that a full machine is found now and not by a signal in the midst of an act.

    Args:
        name: shown by the system (/proc), unique or not.

    Raises:
        OSError: there is no room.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd
