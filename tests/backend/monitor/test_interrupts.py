"""Ctrl-C where Python loses it: the exception that it raises in a finalizer is printed, and nobody else hears of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import handmade
import pytest
from torch import Tensor

import backend
from backend import inprocess, reference
from backend.monitor.interrupts import Interrupts, noticing_interrupts


class InterruptedInItsFinalizer:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Types of exceptions that Python ignored."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: ignored.append(unraisable.exc_type))
    return ignored


def perform_by_reference(at_step: Callable[[int], object]) -> None:
    good = handmade.batches(2)

    def batches(step: int) -> tuple[Tensor, ...]:
        at_step(step)
        return good(min(step, 4))

    reference.perform(handmade.pipeline(2), handmade.start(), batches, 10**5)


def perform_by_threads(at_step: Callable[[int], object]) -> None:
    batch = handmade.batches(2)(0)
    inprocess.run(handmade.pipeline(2), handmade.start(), lambda step: batch, 10**5, on_progress=lambda step, loss: at_step(step))


def perform_by_processes(at_step: Callable[[int], object]) -> None:
    batch = handmade.batches(2)(0)
    backend.run(handmade.pipeline(2), handmade.start(), lambda step: batch, 3000, on_progress=lambda step, loss: at_step(step))


@pytest.mark.parametrize(
    "performed", [perform_by_reference, perform_by_threads, pytest.param(perform_by_processes, marks=pytest.mark.processes)]
)
def test_an_interrupt_in_a_finalizer_ends_the_run(performed: Callable[[Callable[[int], object]], None], lost: list[object]) -> None:
    """A run went on for its 100,000 steps, as if nobody had pressed Ctrl-C."""
    seen: list[int] = []

    def at_step(step: int) -> None:
        if step >= 3 and not seen:
            seen.append(step)
            InterruptedInItsFinalizer()

    with pytest.raises(KeyboardInterrupt):
        performed(at_step)
    assert lost == [KeyboardInterrupt] and seen
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupted(failure: Exception | None = None, *, looks: bool = False) -> Interrupts:
    """A body that loses an interrupt, and fails, looks for it, or just ends."""
    with noticing_interrupts() as interrupts:
        InterruptedInItsFinalizer()
        if looks:
            interrupts.check()
        if failure is not None:
            raise failure
    return interrupts


def test_an_interrupt_is_raised_at_once_where_it_is_not_lost() -> None:
    after: list[str] = []

    def body() -> None:
        with noticing_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            after.append("later")

    with pytest.raises(KeyboardInterrupt):
        body()
    assert after == []


def test_one_that_was_lost_is_raised_by_the_next_look_or_at_the_end_and_only_once(lost: list[object]) -> None:
    for failure in (None, ValueError("meanwhile")):
        with pytest.raises(KeyboardInterrupt):
            interrupted(failure)
    with noticing_interrupts() as outer:
        with pytest.raises(KeyboardInterrupt):
            interrupted(looks=True)
        outer.handled()
        outer.check()
        assert interrupted() is outer  # it is for the outermost to raise
        with pytest.raises(KeyboardInterrupt):
            outer.check()
        outer.handled()
    assert lost == [KeyboardInterrupt] * 4


def test_handlers_of_the_program_and_threads_that_get_no_signals_are_left_alone() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with noticing_interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]
    found: list[Interrupts] = []

    def elsewhere() -> None:
        with noticing_interrupts() as interrupts:
            found.append(interrupts)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found and signal.getsignal(signal.SIGINT) is before
