"""The page of a server in a real browser: what a visitor does, and the pictures of it in the documentation (kind ``run``).

    python -m experiments.server.page [--out experiments/figures]     needs chromium and chromedriver

A layout is predicted and a slider moved by keys; a plan is searched and watched, also by the page loaded anew; a what-if of it is set beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.processes.browser import Browser
from tests.regista.server.serving import Serving, serving

__all__ = ["main", "visit"]

OUT = Path(__file__).parents[1] / "figures"
STEP = "return document.querySelector('#now .tile b')?.textContent ?? ''"
SEARCHED = """
const set = (id, value) => { document.getElementById(id).value = value }
set('model', 'zoo:gpt?layers=2'); set('s-cluster', 'dgx-a100'); set('s-nodes', 1); set('stages', -1); set('batches', -1)
document.getElementById('plan').dispatchEvent(new Event('input'))
document.getElementById('search').focus()
"""
FITS = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def visit(browser: Browser, server: Serving, out: Path) -> dict[str, object]:
    """Use the page as a visitor would, and keep pictures of it; returns what was seen."""
    assert server.token is not None
    seen: dict[str, object] = {}
    browser.scheme("light")
    browser.size(1200, 1000)
    browser.go(f"{server.url}/#token={server.token.read_text().strip()}")
    seen["first"] = browser.wait(STEP)
    seen["address"] = browser.script("return location.href")
    browser.script("document.getElementById('tp').focus()")
    browser.key("ArrowRight")
    seen["moved"] = browser.wait(STEP.replace("?? ''", f"!== {str(seen['first'])!r} && document.querySelector('#now .tile b').textContent"))
    _picture(browser, out / "server_predict.png")
    browser.script("document.querySelector('input[value=plan]').click()")
    browser.script(SEARCHED)
    browser.key("Enter")
    seen["watched"] = browser.wait(
        "const said = document.getElementById('state').textContent; return /^Best so far .* lower bound/.test(said) && !/Done/.test(said) && said"
    )
    _picture(browser, out / "server_search.png")
    browser.go(f"{server.url}/?again")  # the tab is loaded anew, and comes back to its search
    seen["again"] = browser.wait("return document.getElementById('state').textContent")
    browser.wait("return document.querySelector('#now .gantt img')?.naturalWidth > 0")
    seen["planned"] = browser.script(STEP)
    browser.script("document.getElementById('pin').click(); document.getElementById('nic').focus()")
    browser.key("ArrowLeft")
    browser.wait(
        "return /What if/.test(document.querySelector('#now h3').textContent) && document.querySelector('#now .gantt img').naturalWidth > 0"
    )
    seen["difference"] = browser.script("return document.getElementById('difference').textContent")
    browser.script("document.getElementById('h-result').scrollIntoView()")
    _picture(browser, out / "server_compare.png")
    browser.scheme("dark")
    _picture(browser, out / "server_compare_dark.png")
    for width in (360, 700, 1400):
        browser.size(width)
        assert browser.script(FITS), f"the page is wider than a window of {width} px"
    browser.size(360, 1400)
    browser.scheme("light")
    browser.script("window.scrollTo(0, 0)")
    _picture(browser, out / "server_narrow.png")
    names = browser.script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert isinstance(names, list)
    seen["others"] = [name for name in names if not name.startswith((server.url, "data:", "blob:"))]
    seen["complaints"] = browser.complaints()
    seen["unnamed"] = browser.script(
        "return [...document.querySelectorAll('input, select, button')].filter(e => !(e.labels?.length || e.textContent || e.ariaLabel)).map(e => e.id)"
    )
    return seen


def _picture(browser: Browser, path: Path) -> None:
    path.write_bytes(browser.png())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="regista-page-") as folder, serving(Path(folder, "server"), "--tcp", "127.0.0.1:0") as server:
        browser = Browser(Path(folder, "chromium"))
        try:
            print(visit(browser, server, args.out))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
