"""What a process that performs requests may open, change and start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRIES = """
import os, socket, sys
from pathlib import Path
from regista.server.work.confined import confine
own, other = Path(sys.argv[1], "own"), Path(sys.argv[1], "other")
(own / "a").write_text("a")
confine([own])
def refused(act):
    try:
        act()
    except PermissionError as error:
        return "a request of a server" in str(error)
    return False
(own / "b").write_text((own / "a").read_text())
os.replace(own / "b", own / "c")
print([refused(act) for act in (
    lambda: (other / "secret").read_text(),
    lambda: Path(str(own) + "-next/secret").read_text(),
    lambda: (own / "../other/secret").read_text(),
    lambda: Path("/proc/self/root", str(other)[1:], "secret").read_text(),
    lambda: (other / "new").write_text("x"),
    lambda: os.replace(own / "c", other / "new"),
    lambda: os.replace(other / "secret", own / "d"),
    lambda: os.remove(other / "secret"),
    lambda: os.symlink(other, own / "link"),
    lambda: os.system("true"),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    lambda: socket.create_connection(("127.0.0.1", 9)),
)])
"""


@pytest.mark.processes
def test_a_confined_process_reads_and_changes_its_own_files_alone_and_starts_nothing(tmp_path: Path):
    for name in ("own", "own-next", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text("s")
    tried = subprocess.run([sys.executable, "-c", TRIES, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path / "other")
    assert tried.stdout == f"{[True] * 12}\n", tried.stderr
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["secret"]
