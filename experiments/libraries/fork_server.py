"""Our fork server beside multiprocessing's with the same modules preloaded: ``python -m experiments.libraries.fork_server``.

Prints the time from asking for two workers until both run, and who lives 4 s after a process was killed or stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

from backend.launch.workers import fork_server_client
from backend.worker.process import die_with_parent

__all__ = ["main"]

RANKS, REPETITIONS, SILENCE_S, WAIT_S = 2, 12, 2.0, 4.0
SIDES = ("ours", "multiprocessing")
WITHOUT_GUARD = "import sys; from experiments.libraries import fork_server; fork_server.start(sys.argv[1], sys.argv[2])"


def main(folder: str) -> int:
    """A worker: says that it runs, and waits until it may end.  Its exit code is 3 and its rank."""
    Path(folder, f"runs{os.environ['RANK']}").write_text(str(os.getpid()))
    while not Path(folder, "end").exists():
        time.sleep(0.005)
    return 3 + int(os.environ["RANK"])


def _their_worker(folder: str, rank: int) -> None:
    die_with_parent()
    os.environ["RANK"] = str(rank)
    os._exit(main(folder))


def start(side: str, folder: str) -> list[int]:
    """Start RANKS workers and wait until all run; the pids of the server and of the workers."""
    if side == "ours":
        client = fork_server_client()
        environments = [{"RANK": str(rank)} for rank in range(RANKS)]
        client.start(folder, "experiments.libraries.fork_server", Path(folder), environments, SILENCE_S)
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "backend.worker.process"])
        for rank in range(RANKS):
            context.Process(target=_their_worker, args=(folder, rank), daemon=False).start()
    while len(files := sorted(Path(folder).glob("runs*"))) < RANKS or not all(path.read_text() for path in files):
        time.sleep(0.001)
    server = fork_server_client().server_pid if side == "ours" else forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return [server, *(int(path.read_text()) for path in files)]


def _hold(side: str, folder: str) -> None:
    """Print the pids, and wait."""
    print(os.getpid(), *start(side, folder), flush=True)
    time.sleep(60)


def _alive(pids: Sequence[int]) -> int:
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return sum(path.exists() and path.read_text().rsplit(")", 1)[1].split()[0] != "Z" for path in states)


def _fate(side: str, victim: int, number: signal.Signals) -> str:
    """Who lives WAIT_S after the signal.  victim: 0 the parent, 1 the server."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.libraries.fork_server", "hold", side, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
            assert parent.stdout is not None
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            os.kill(pids[victim], number)
            time.sleep(WAIT_S)
            alive = f"server {'lives' if _alive(pids[1:2]) else 'ended'}, {_alive(pids[2:])} of {RANKS} workers live"
            for pid in filter(lambda pid: _alive([pid]), pids):
                os.kill(pid, signal.SIGKILL)
    return alive


def _without_guard(side: str) -> str:
    """Whether a script without ``if __name__ == "__main__"`` can start workers."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(WITHOUT_GUARD)
        command = [sys.executable, str(script), side, folder]
        try:
            done = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired as error:
            return f"workers never run: {'RuntimeError' if b'RuntimeError' in (error.stderr or b'') else 'no message'}"
    return "workers run" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _compare() -> None:
    for side in SIDES:
        times_s = []
        for _ in range(REPETITIONS):
            with tempfile.TemporaryDirectory() as folder:
                begin_s = time.perf_counter()
                start(side, folder)
                times_s.append(time.perf_counter() - begin_s)
                Path(folder, "end").touch()
                time.sleep(0.1)
        later = sorted(times_s[1:])
        print(
            f"{side}: first start {times_s[0]:.1f} s, then {statistics.median(later) * 1e3:.0f} ms ({later[0] * 1e3:.0f} to {later[-1] * 1e3:.0f})"
        )
        for name, victim, number in (("parent", 0, signal.SIGKILL), ("parent", 0, signal.SIGSTOP), ("server", 1, signal.SIGKILL)):
            print(f"{side}: {number.name} of the {name}: {_fate(side, victim, number)}")
        print(f"{side}: a script without a guard: {_without_guard(side)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        _hold(*sys.argv[2:])
    else:
        _compare()
