"""Pages in a real browser."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regista.report import save_folder
from tests.regista.report.report_cases import PLAN, SWEPT


def _timeline_tests():
    """The browser of the timeline's tests, wherever pytest has put that module."""
    name = "timeline_tests_of_report"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "views/test_timeline.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


needs_browser = _timeline_tests().needs_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    started = _timeline_tests().Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_pages_fit_narrow_and_wide_windows_in_light_and_dark_without_network(
    browser, folder: Path, tmp_path: Path, width: int, scheme: str
):
    (folder / "results/m.csv").write_text("\n".join(SWEPT) + "\n")
    save_folder(folder, tmp_path / "out")
    browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.scheme(scheme)
    paper = browser.script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert paper == (scheme == "dark")
    for page in ("index.html", "r.html", "m.html", f"compare-{PLAN.plan_id}.html"):
        browser._post(f"/session/{browser.session}/url", {"url": (tmp_path / "out" / page).as_uri()})
        if page.startswith("compare"):
            browser.wait("return window.Bokeh?.documents?.[0]?.is_idle ?? false")
        assert browser.script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"), page
        back, ink = browser.script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
        lightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (back, ink)]
        assert (lightness[0] > lightness[1]) == (scheme == "light")
        assert abs(lightness[0] - lightness[1]) > 150
        assert browser.complaints() == []
        names = browser.script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert [name for name in names if not name.startswith("data:")] == []
