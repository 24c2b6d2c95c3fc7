"""TCP ports at which processes listen, from the kernel's tables (Linux)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """(IPv4 address, or ``ipv6``; port) of every socket at which one of the processes listens."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                name = os.readlink(link)
            except OSError:
                continue
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTEN and inode in inodes:
                address, port = local.split(":")
                where = socket.inet_ntoa(struct.pack("<I", int(address, 16))) if table == "tcp" else "ipv6"
                found.add((where, int(port, 16)))
    return found


def descendants(root: int) -> set[int]:
    """The process and all below it that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    below, waiting = set(), [root]
    while waiting:
        pid = waiting.pop()
        below.add(pid)
        waiting += children.get(pid, [])
    return below
