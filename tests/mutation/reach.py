"""Which tests run which line: a pytest plugin that records it once, and the map that is read from its records.

    python -m pytest -p tests.mutation.reach --reach DIRECTORY --reach-in planner/solve ...

coverage.py measures the modules asked for and nothing else, with the running test as its context, so the tests take little longer.
A test that failed without any fault is left out: it could not tell one from none.  Worker processes are not measured; tests that start
them (marker ``processes``) are kept by name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

__all__ = ["Reach", "Timed", "read_reach"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach", help="folder for the records of which test ran which line")
    parser.addoption("--reach-in", action="append", default=[], help="a module or a folder of modules to be measured")


def pytest_configure(config: pytest.Config) -> None:
    with_workers = config.getoption("numprocesses", None)
    if config.getoption("--reach") and not (with_workers and not hasattr(config, "workerinput")):
        config.pluginmanager.register(_Recorder(Path(config.getoption("--reach")), config.getoption("--reach-in")), "recorder")


class _Recorder:
    """Writes one coverage file and one file of times per process."""

    def __init__(self, folder: Path, measured: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        include = [f"{Path(name).resolve()}{'' if name.endswith('.py') else '/*'}" for name in measured]
        self.coverage = coverage.Coverage(data_file=str(folder / f"lines.{os.getpid()}"), include=include, config_file=False)
        self.times = folder / f"times.{os.getpid()}.jsonl"
        self.failed = False
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        self.failed, start_s = False, time.perf_counter()
        result = yield
        record = {
            "test": item.nodeid,
            "seconds": round(time.perf_counter() - start_s, 3),
            "passed": not self.failed,
            "processes": item.get_closest_marker("processes") is not None,
        }
        with self.times.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= not report.passed

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A test that passes, and how long it took, in seconds."""

    test: str
    seconds: float
    processes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Tests, quickest first, by what they run in their own process."""

    tests: Mapping[str, Timed]
    lines: Mapping[str, Mapping[int, frozenset[str]]]

    def of_lines(self, module: str, first: int, last: int) -> list[Timed]:
        lines = self.lines.get(module, {})
        return self._timed(lines.get(line, frozenset()) for line in range(first, last + 1))

    def of_functions(self, module: str) -> list[Timed]:
        """Those that run any function of the module; numba's lines, and what runs at import, are seen by no measurement."""
        return self._timed(self.lines.get(module, {}).values())

    def _timed(self, names: Iterable[frozenset[str]]) -> list[Timed]:
        known = (self.tests[test] for test in frozenset().union(*names) if test in self.tests)
        return sorted(known, key=lambda timed: timed.seconds)

    def with_processes(self) -> list[Timed]:
        return sorted((timed for timed in self.tests.values() if timed.processes), key=lambda timed: timed.seconds)


def read_reach(folder: Path, tree: Path) -> Reach:
    """What the plugin recorded in ``folder``; modules are named by their path in ``tree``."""
    tests: dict[str, Timed] = {}
    for path in sorted(folder.glob("times.*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["passed"]:
                tests[record["test"]] = Timed(test=record["test"], seconds=record["seconds"], processes=record["processes"])
    lines: dict[str, dict[int, frozenset[str]]] = {}
    for path in sorted(folder.glob("lines.*")):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            if not Path(file).is_relative_to(tree):
                continue
            of_module = lines.setdefault(str(Path(file).relative_to(tree)), {})
            for line_number, contexts in data.contexts_by_lineno(file).items():
                of_module[line_number] = of_module.get(line_number, frozenset()) | frozenset(filter(None, contexts))
    return Reach(tests=tests, lines=lines)
