"""The garbage collector is as it was, whatever happens inside the pause."""

from __future__ import annotations

import gc

import pytest

from planner.ir.collector import collector_paused


def test_the_collector_rests_inside_a_pause_and_works_again_after_the_outermost_one() -> None:
    assert gc.isenabled()
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
