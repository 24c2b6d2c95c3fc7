"""Tests run against a planted fault, in a process forked from one that has the large libraries loaded but none of our modules.

A fork costs some milliseconds where a new interpreter with torch costs 2 to 4 s; the tree's modules are imported after the fork, so the
fault is really in the program, and so it is in worker processes, which a test starts from the same tree.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numba
import pytest

from tests.mutation.faults import Fault
from tests.mutation.reach import Timed
from tests.mutation.tree import planted

__all__ = ["load_libraries", "try_fault", "within"]

_LIBRARIES = (
    "torch", "torch.distributed", "torch.export", "torch._dynamo", "torch._inductor", "numpy", "numba", "pandas", "networkx", "pulp",
    "highspy", "simpy", "yaml", "rich", "hypothesis", "hypothesis.strategies", "xdist", "pytest_timeout",
)  # fmt: skip
_OURS = ("planner", "zoo", "simulator", "backend", "regista", "tests", "experiments")
HANG = "no answer in time"
BATCHES_S = 2.0, 20.0
"""The quickest tests run first by themselves: most faults fall to them, and a process that collects few files is soon ready."""


def load_libraries() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)
    if ours := [name for name in sys.modules if name.partition(".")[0] in _OURS[:5]]:
        raise RuntimeError(f"{ours[:3]} are loaded before the fork, so a fault in them would not be seen")
    numba.njit(lambda x: x + 1)(1)  # the first call loads numba's own tables
    gc.freeze()  # pytest collects garbage at its end; what is loaded here need not be gone through each time


class _FirstFailure:
    """Writes down the first test that fails, and says so if the modules did not come from the tree."""

    def __init__(self, tree: Path, report: Path) -> None:
        self.tree, self.report = tree, report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.report.exists():
            self.report.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.report.exists():
            self.report.write_text(f"collecting {report.nodeid}")

    def pytest_sessionfinish(self) -> None:
        module = sys.modules.get("planner")
        if module is not None and not Path(str(module.__file__)).is_relative_to(self.tree):
            self.report.write_text(f"wrong tree: {module.__file__}")


def within(tests: Sequence[Timed], seconds: float) -> list[Timed]:
    """As many of the first tests as take ``seconds`` in all, but at least one."""
    ends_s = accumulate(timed.seconds for timed in tests)
    return [timed for number, (timed, end_s) in enumerate(zip(tests, ends_s, strict=True)) if end_s <= seconds or number == 0]


def try_fault(tree: Path, fault: Fault, tests: Sequence[Timed]) -> str | None:
    """Who caught the fault, None if nobody did."""
    for batch in _batches(tests):
        while batch:
            with planted(tree, fault):
                caught_by = _first_failure(tree, batch)
            if caught_by is None:
                break
            suspects = [timed for timed in batch if timed.test == caught_by] or batch
            if not _can_fail_of_load(suspects) or _first_failure(tree, suspects) is None:
                return caught_by
            batch = batch[batch.index(suspects[-1]) + 1 :]
    return None


def _batches(tests: Sequence[Timed]) -> list[list[Timed]]:
    batches: list[list[Timed]] = [[] for _ in range(len(BATCHES_S) + 1)]
    for timed, end_s in zip(tests, accumulate(timed.seconds for timed in tests), strict=True):
        batches[sum(end_s > limit_s for limit_s in BATCHES_S)].append(timed)
    return [batch for batch in batches if batch]


def _can_fail_of_load(suspects: Sequence[Timed]) -> bool:
    """Then they must pass once without the fault before their failure counts."""
    return any(timed.processes or timed.seconds > 2 for timed in suspects)


def _first_failure(tree: Path, tests: Sequence[Timed]) -> str | None:
    """The first of the tests that fails in this tree, None if all pass; a process that hangs or ends otherwise counts as a failure.

    Raises:
        RuntimeError: the tests ran against other modules than the tree's, or pytest does not know them.
    """
    report, log = tree.parent / "failure.txt", tree.parent / "trial.log"
    report.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _run(tree, [timed.test for timed in tests], report, log)
        finally:
            os._exit(code)
    code = _wait(child, 60 + 5 * sum(timed.seconds for timed in tests))
    failure = report.read_text() if report.exists() else None
    if failure is not None and failure.startswith("wrong tree"):
        raise RuntimeError(failure)
    if code in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    if failure is None and code == pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError(f"pytest does not know these tests; see {log}")
    if code is None:
        return HANG
    return failure or f"exit code {code}"


def _run(tree: Path, tests: Sequence[str], report: Path, log: Path) -> int:
    os.setsid()
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    here = {"", str(Path.cwd()), str(Path(__file__).parents[2])}
    sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in here)]
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short", "--override-ini=addopts=--strict-markers --import-mode=importlib"]
    return int(pytest.main([*arguments, *tests], plugins=[_FirstFailure(tree, report)]))


def _wait(child: int, limit_s: float) -> int | None:
    """The child's exit code; None if it had to be ended."""
    end_s = time.monotonic() + limit_s
    pause_s = 0.01
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end_group(child)
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end_s:
            _end_group(child)
            os.waitpid(child, 0)
            return None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)


def _end_group(child: int) -> None:
    """The child with the processes that it started and that share its group."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return
