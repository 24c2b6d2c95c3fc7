"""A host that cannot hold a process per rank refuses before any value is made."""

from __future__ import annotations

import pytest
from matrix import read_plan

import regista.api as api
from backend.launch import host
from planner.ir.errors import Unsupported
from planner.ir.units import GIB
from regista.calibrate import calibrate_plan

PLAN = read_plan("gpt", "data2", "fp32")


@pytest.mark.parametrize("begin", [lambda plan: api.run(plan, steps=1), api.session, calibrate_plan])
def test_more_processes_than_memory_holds_are_refused_before_values_are_made(begin: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda: 2 * host.LEAST_WORKER_BYTES - 1)
    monkeypatch.setattr(api, "beginning", lambda *given, **named: pytest.fail("values were made"))
    assert callable(begin)
    with pytest.raises(Unsupported, match=r"2 ranks are 2 processes of at least 16\.0 MiB, 32\.0 MiB in all"):
        begin(PLAN)


def test_free_memory_is_a_number_of_bytes_below_that_of_any_machine() -> None:
    assert 0 < host.free_bytes() < 10**6 * GIB
