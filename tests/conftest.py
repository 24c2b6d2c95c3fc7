"""For every test: fixed seeds, one thread per process, no deadline on a machine that others use too; and the tier that it belongs to.

    make test               neither ``thorough`` nor ``experiments``: every law on cheap cases, one case of every kind of fault
    make test-all           all but ``experiments``: every case of every law
    make test-experiments   ``experiments``: smoke sizes of experiments, the paper, pages in the browser

A test is in ``make test`` unless a marker says otherwise: ``@pytest.mark.thorough`` on a test or a whole file,
``@pytest.mark.representatives("a", "b")`` on a parametrized test whose cases are all thorough but those with these ids.
What lies in tests/experiments/ or opens a browser is ``experiments``.  Where the laws are tested: tests/README.md.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path

# Before torch is imported: it reads them once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# readline, which pytest imports, tells child processes that a terminal has 80 columns, though there is none.
os.environ.pop("COLUMNS", None)

# A shell that starts a command in the background has it ignore Ctrl-C, and so all that it starts; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Plans that tests make are no plans of the user's.
_state = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="regista-tests-state-")

import pytest
import torch

from tests.tiers import choose_tier

EXPERIMENTS = Path(__file__).parent / "experiments"


def pytest_sessionfinish() -> None:
    shutil.rmtree(_state, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-plans", action="store_true", help="write the committed Plans of the conformance matrix anew (make plans)")
    parser.addoption(
        "--update-screens", action="store_true", help="write the committed screens of the verbs, and the README's, anew (make screens)"
    )


def pytest_configure(config: pytest.Config) -> None:
    choose_tier(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The experiments' folder is not imported where none of its tests is wanted: that takes 2 seconds."""
    return True if collection_path == EXPERIMENTS and "not experiments" in str(config.getoption("markexpr")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _into_tier(item)
    slow = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in slow)  # a file is one of pytest's processes' work: none of these is to be the last
    if not any("[" in argument for argument in config.args):  # else single cases were asked for
        _refuse_unknown_representatives(items)


def _into_tier(item: pytest.Item) -> None:
    """All cases of a test are thorough but its representatives; what lies in the experiments' folder or opens a browser is ``experiments``."""
    if EXPERIMENTS in item.path.parents or "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.experiments)
    chosen = item.get_closest_marker("representatives")
    if chosen is not None and _case(item) not in chosen.args:
        item.add_marker(pytest.mark.thorough)


def _case(item: pytest.Item) -> str:
    """The id of a parametrized test's case."""
    return item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""


def _refuse_unknown_representatives(items: Iterable[pytest.Item]) -> None:
    """A representative that was renamed would leave the quick tier without a word."""
    seen: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for item in items:
        if (chosen := item.get_closest_marker("representatives")) is not None:
            seen.setdefault((item.nodeid.partition("[")[0], chosen.args), set()).add(_case(item))
    for (test, requested), cases in seen.items():
        if len(cases) > 1 and (unknown := set(requested) - cases):
            raise pytest.UsageError(f"{test} has no cases {sorted(unknown)}; its representatives are among {sorted(cases)}")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed also notes down a traceback per kind of device that was never used
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
