"""What torchrun's agent does to this process is undone, and the user's own logging goes on meanwhile."""

from __future__ import annotations

import logging
import signal

import pytest

from backend.launch.elastic import AGENT_LOGGERS, _quiet_agent

AGENT = "torch.distributed.elastic.agent.server.api"


def test_the_users_loggers_go_on_while_the_agent_works(caplog: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("mine")
    caplog.set_level(logging.DEBUG)
    with _quiet_agent():
        mine.debug("step 1")
        mine.warning("step 2")
        assert logging.root.manager.disable == 0
    assert [record.message for record in caplog.records if record.name == "mine"] == ["step 1", "step 2"]


def test_what_the_agent_logs_is_dropped_meanwhile_and_not_afterwards() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    above = logging.getLogger("torch.distributed")
    above.addHandler(handler)
    try:
        with _quiet_agent():
            logging.getLogger(AGENT).error("meanwhile")
        logging.getLogger(AGENT).error("afterwards")
    finally:
        above.removeHandler(handler)
    assert records == ["afterwards"]
    assert all(logging.getLogger(name).propagate and not logging.getLogger(name).handlers for name in AGENT_LOGGERS)


def test_the_agents_signal_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with _quiet_agent():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
