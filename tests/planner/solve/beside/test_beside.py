"""A function in a second process: what comes out, and what is raised, is what the function gives in one, and no process is left."""

from __future__ import annotations

import os
import threading
from time import perf_counter, sleep

import pytest
from rich.progress import Progress

from planner.ir.errors import Unsupported
from planner.solve import beside as module
from planner.solve.beside import Beside, has_second_core

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_result_is_the_second_ones_where_there_may_be_one_and_the_firsts_where_not() -> None:
    beside = Beside(os.getpid, allowed=lambda: True)
    assert beside.start() and beside.start()
    process = beside.process
    assert process is not None and beside.result() == process
    assert beside.process is None and not is_alive(process)
    alone = Beside(os.getpid, allowed=lambda: False)
    assert not alone.start() and alone.received() is None and alone.result() == os.getpid()


@pytest.mark.parametrize("how", ["dies", "raises", "returns what cannot be pickled"])
def test_what_goes_wrong_in_the_second_process_the_first_does_itself(how: str) -> None:
    first = os.getpid()

    def work() -> object:
        if os.getpid() == first:
            return "first"
        if how == "dies":
            os._exit(1)
        if how == "raises":
            raise ValueError("only there")
        return lambda: None

    beside = Beside(work, allowed=lambda: True)
    assert beside.start()
    assert beside.result() == "first" and beside.process is None


def test_who_waits_does_other_work_until_there_is_none_or_the_result_is_there() -> None:
    beside, left = Beside(lambda: sleep(0.3) or os.getpid(), allowed=lambda: True), 3
    beside.start()
    process = beside.process

    def meanwhile() -> bool:
        nonlocal left
        left -= left > 0
        return left > 0

    assert beside.result(meanwhile) == process and left == 0


def test_what_the_function_raises_the_first_process_raises() -> None:
    def work() -> int:
        raise Unsupported("no such layout; ask for another one")

    beside = Beside(work, allowed=lambda: True)
    beside.start()
    with pytest.raises(Unsupported, match="no such layout"):
        beside.result()


def test_nobody_waits_for_a_second_process_once_the_time_is_up() -> None:
    first = os.getpid()

    def work() -> str:
        if os.getpid() != first:
            sleep(60.0)
        return "first"

    beside = Beside(work, is_up=lambda: True, allowed=lambda: True)
    beside.start()
    process, began_s = beside.process, perf_counter()
    assert beside.result() == "first"
    assert perf_counter() - began_s < 30.0
    assert process is not None and not is_alive(process)


def test_a_second_process_whose_result_nobody_wants_is_ended() -> None:
    beside = Beside(lambda: sleep(60.0), allowed=lambda: True)
    beside.start()
    process = beside.process
    beside.stop()
    beside.stop()
    assert process is not None and not is_alive(process) and beside.received() is None


def test_the_second_process_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    import logging
    import warnings

    def work() -> int:
        warnings.warn("beside", stacklevel=1)
        logging.getLogger("planner").error("beside")
        return 7

    beside = Beside(work, allowed=lambda: True)
    beside.start()
    assert beside.received() == (7,)
    assert "beside" not in "".join(capfd.readouterr())


def test_a_thread_that_draws_progress_stands_in_no_way_and_any_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its progress on the screen, 'regista plan' searched on one core."""
    here = threading.current_thread()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(module, "parent_process", lambda: None)
    real = threading.enumerate
    own = [thread for thread in threading.enumerate() if thread is not here]
    monkeypatch.setattr(threading, "enumerate", lambda: [thread for thread in real() if thread not in own])
    assert has_second_core()
    with Progress():
        assert has_second_core()
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)
    other.start()
    try:
        assert not has_second_core()
    finally:
        waiting.set()
        other.join()
