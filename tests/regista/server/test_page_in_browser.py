"""The page of a server in a real browser (skipped where there is none)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, needs_browser

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from experiments.server.page import visit
from regista.server.page import PAGE
from tests.regista.server.serving import serving


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    started = Browser(tmp_path / "chromium")
    yield started
    started.quit()


@needs_browser
@pytest.mark.processes
def test_a_visitor_predicts_by_keys_watches_a_search_and_sets_two_plans_side_by_side(browser: Browser, tmp_path: Path):
    with serving(tmp_path / "server", "--tcp", "127.0.0.1:0") as server:
        seen = visit(browser, server, tmp_path)
    assert "token" not in str(seen["address"])
    assert seen["first"] != seen["moved"]
    assert re.search(r"Best so far .*s, lower bound .*s", str(seen["watched"]))
    assert seen["again"] and re.search(r"[num]?s$", str(seen["planned"]))
    assert "of its step time" in str(seen["difference"])
    assert (seen["others"], seen["complaints"], seen["unnamed"]) == ([], [], [])
    assert len(list(tmp_path.glob("server_*.png"))) == 5


def test_the_page_names_no_other_host_and_no_script_of_its_own_html():
    for content, _ in PAGE.values():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", content.decode())
    html = PAGE["/"][0].decode()
    assert not re.search(r"\son\w+=|style=", html) and "<script>" not in html
