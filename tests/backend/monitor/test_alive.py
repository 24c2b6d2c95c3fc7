"""Signs of life: who stands still is noticed in the watcher's own time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from python_path import PYTHON_PATH

from backend.monitor.alive import LAUNCHER, SERVER, AliveCounts, Silence, place_of


def test_a_number_that_does_not_change_is_silent_after_the_limit_and_a_changing_one_never(tmp_path: Path) -> None:
    counts = AliveCounts.create(tmp_path, 2)
    silence = Silence(counts, (LAUNCHER, SERVER, place_of(1)))
    silent: list[int] = []
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        counts.count(SERVER)
        AliveCounts.open(tmp_path).count(place_of(1))
        silent = silence.longer_than(0.3)
        time.sleep(0.02)
    assert silent == [LAUNCHER]
    counts.count(LAUNCHER)
    assert silence.longer_than(0.3) == []


def test_a_pause_of_the_watcher_is_not_the_silence_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("backend.monitor.alive.time.monotonic", lambda: now_s[0])
    silence = Silence(AliveCounts.create(tmp_path, 1), (LAUNCHER,))
    for now_s[0] in (0.1, 0.2, 1000.0):
        assert silence.longer_than(3.0) == []
    for now_s[0] in (1001.0, 1002.0, 1003.0):
        silent = silence.longer_than(3.0)
    assert silent == [LAUNCHER]


WORKER = """
import os, sys, time
from pathlib import Path
from backend.monitor.alive import count_and_watch
count_and_watch(Path(sys.argv[1]), 0, 0.5)
print("counting", flush=True)
time.sleep(60)
"""


@pytest.mark.processes
def test_a_worker_whose_launcher_and_fork_server_both_stand_still_ends_its_parent_and_itself(tmp_path: Path) -> None:
    """Nobody else is left to do it.  The parent here is a shell that stands for the fork server."""
    AliveCounts.create(tmp_path, 1)
    script = f'"{sys.executable}" -c "$0" "$1" & echo $!; wait'
    parent = subprocess.Popen(
        ["bash", "-c", script, WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": PYTHON_PATH}
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert parent.stdout.readline() == "counting\n"
    os.kill(parent.pid, signal.SIGSTOP)
    assert parent.wait(20) == -signal.SIGKILL
    until_s = time.monotonic() + 5
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}").exists()
