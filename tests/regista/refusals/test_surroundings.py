"""Where the command line may be called: closed streams, a narrow terminal, no home, no /dev/shm."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CALL = f"{shlex.quote(sys.executable)} -m regista.cli"
MODEL = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("surroundings") / "plan.json"
    bash(f"{CALL} plan {shlex.quote(MODEL)} --cluster local:2 --stages 2 --micro-batches 2 -o {path}")
    return path


def bash(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.mark.representatives(">&-")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_traceback(plan: Path, closed: str) -> None:
    assert bash(f"{CALL} simulate {plan} --steps 2 {closed}").returncode == 0
    assert bash(f"{CALL} simulate {plan.parent}/none.json {closed}").returncode == 2


@pytest.mark.thorough
@pytest.mark.processes
def test_closed_streams_are_no_traceback_in_a_run_of_processes(plan: Path) -> None:
    assert bash(f"{CALL} run {plan} --steps 2 >&- 2>&- <&-").returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["explain", "simulate", "verify"])
def test_a_terminal_of_20_columns_is_no_traceback(plan: Path, verb: str) -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    try:
        command = [sys.executable, "-m", "regista.cli", verb, str(plan)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "COLUMNS": "20"}) as process:
            shown, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and "Traceback" not in shown
        assert b"Traceback" not in os.read(ours, 1 << 20)
    except BlockingIOError:
        pass  # nothing was written to the terminal
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.thorough
@pytest.mark.processes
def test_a_run_needs_no_home(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, so nothing can be written below it")
    assert bash(f"{CALL} run {plan} --steps 2", HOME=str(tmp_path / "home"), XDG_STATE_HOME="", XDG_CACHE_HOME="").returncode == 0


@pytest.mark.thorough
@pytest.mark.processes
def test_a_run_needs_no_shared_memory_in_dev_shm(plan: Path, tmp_path: Path) -> None:
    without = f"mount --bind {tmp_path} /dev/shm && mount -o remount,ro,bind /dev/shm && ! touch /dev/shm/x"
    if bash(f"unshare -m sh -c {shlex.quote(without)}").returncode:
        pytest.skip("mounting is not allowed here")
    assert bash(f"unshare -m sh -c {shlex.quote(f'{without} && {CALL} run {plan} --steps 2')}").returncode == 0
