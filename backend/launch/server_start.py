"""How the fork server begins: it imports torch for seconds, on a busy machine for a quarter of a minute, and serves nobody meanwhile.

    python server_start.py CHANNEL PARENT      the number of the socket to the parent, the parent's process id

The kernel says when the parent has ended (a signal of PR_SET_PDEATHSIG); a server that is still importing then removes the folders of the runs
that it was asked for, because nobody else will, and ends.  Run as a file, so that none of the product is imported before it listens to that signal.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
"""[linux/prctl.h]"""


def _main() -> None:
    sys.path[0] = ""  # as with -c: this file's folder is none to import from
    channel, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is not for it

    def parent_ended(*_: object) -> None:
        if os.getppid() == parent:
            return  # somebody else sent it
        _remove_folders(channel)
        os._exit(1)

    if sys.platform == "linux":
        signal.signal(signal.SIGCONT, parent_ended)  # this one, since it wakes a stopped server too
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
        parent_ended()  # it may have been gone by then
    gc.disable()  # until all is loaded, which stays
    from backend.launch.fork_server import serve

    serve(channel)
    os._exit(0)  # its parent waits, and unloading torch takes a quarter of a second


def _remove_folders(channel: int) -> None:
    """Those of the runs whose start lies unread on the channel."""
    data = b""
    with suppress(OSError), socket.socket(fileno=channel) as connection:
        while part := connection.recv(1 << 16, socket.MSG_DONTWAIT):
            data += part
    for line in data.split(b"\n")[:-1]:
        message = json.loads(line)
        if message["message"] == "start":
            shutil.rmtree(message["folder"], ignore_errors=True)


if __name__ == "__main__":
    _main()
