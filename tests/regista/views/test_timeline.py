"""The HTML timeline: what its columns say, and the page itself in a real browser (skipped where there is none)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, needs_browser
from stories import BLOCK_BYTES, TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.traces.trace import Source
from planner.ir.units import KIB
from regista.views.pictures.gantt import COLOURS, gantt_rows
from regista.views.pictures.window import show_last
from regista.views.timeline import save_timeline
from regista.views.timeline.columns import act_columns, idle_columns, memory_columns
from simulator import simulate
from simulator.analysis.curve import memory_curves
from simulator.analysis.idle import Reason, idle_times

PLAN = pipeline(2, 4)
MS_COST = TableCost({"load": 1e-4}, default_s=1e-3)
SIM = simulate(PLAN, MS_COST, steps=2)
RUN = replace(simulate(PLAN, TableCost({"F0": 2e-3}, default_s=1e-3), steps=3), source=Source.RUN, performer="story")


# --- columns ----------------------------------------------------------------------------------------------------------


def test_every_act_of_the_shown_rows_is_a_box_and_says_what_it_is():
    rows = gantt_rows(PLAN, [SIM])
    window = show_last(PLAN, SIM, 2)
    columns = act_columns(PLAN, window, rows)
    assert {len(values) for values in columns.values()} == {len(SIM.acts)}
    boxes = dict(zip(zip(columns["what"], columns["more"], strict=True), zip(columns["left"], columns["right"], strict=True), strict=True))
    for act in SIM.acts:
        task = PLAN.task[act.task]
        step, micro_batch = divmod(act.number, task.acts)
        more = f"{task.kind.value}, rank {act.rank}, step {step}" + (f", micro-batch {micro_batch}" if task.acts > 1 else "")
        assert boxes[act.task, more] == pytest.approx((act.start_s * 1e3, act.end_s * 1e3))


def test_a_collective_is_named():
    plan = data_parallel(2)
    trace = simulate(plan, MS_COST, steps=1)
    columns = act_columns(plan, show_last(plan, trace, 1), gantt_rows(plan, [trace]))
    assert "boxing, rank 0, step 0, all_reduce" in columns["more"]


def test_gaps_are_cut_to_the_window_and_carry_their_reason():
    rows, window = gantt_rows(PLAN, [SIM]), show_last(PLAN, SIM, 1)
    idle = idle_times(PLAN, SIM)
    columns = idle_columns(PLAN, window, idle, rows)
    assert min(columns["left"]) >= 0.0
    assert max(columns["right"]) <= window.length_s * 1e3
    inside = [gap for gap in idle if gap.end_s > window.begin_s]
    assert sorted(columns["what"]) == sorted(map(str, inside))
    assert {alpha for alpha, what in zip(columns["alpha"], columns["what"], strict=True) if "nothing" in what} == {0.05}


def test_stacked_levels_reach_the_peak_and_end_with_the_window():
    plan = chain("ab", (2, 1), acts=2)
    trace = simulate(plan, TableCost({"b": 2.0}), steps=1)
    columns = memory_columns(memory_curves(plan, trace)[0], show_last(plan, trace, 1), KIB)
    assert max(columns["total"]) == 3 * BLOCK_BYTES / KIB
    assert columns["workspace"] == columns["total"]  # the last category's top is the sum of all
    assert columns["left"][1:] == columns["right"][:-1]
    assert (columns["left"][0], columns["left"][-1]) == (0.0, 5000.0)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_page_carries_its_javascript_and_names_no_other_file(tmp_path: Path):
    path = tmp_path / "t.html"
    save_timeline(PLAN, [RUN, SIM], path)
    text = path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["t.html"]
    tags = re.findall(r"<(?:script|link|img)\b[^>]*>", re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", text, flags=re.DOTALL))
    assert tags
    assert not [tag for tag in tags if "src=" in tag or "href=" in tag]
    assert "2 of 2 steps predicted (sim), 2 of 3 steps measured (run)" in text
    assert text.index("predicted (sim): idle") < text.index("measured (run): idle")


def test_text_of_the_plan_is_escaped(tmp_path: Path):
    plan = replace(PLAN, model="<script>alert(1)</script>")
    save_timeline(plan, [simulate(plan, MS_COST, steps=1)], tmp_path / "t.html")
    assert "<script>alert" not in (tmp_path / "t.html").read_text()


def test_the_table_shares_out_the_idle_time_of_the_shown_steps(tmp_path: Path):
    save_timeline(PLAN, [SIM], tmp_path / "t.html", steps=1)
    table = re.search(r"<table>.*?</table>", (tmp_path / "t.html").read_text(), re.DOTALL)
    assert table is not None
    head = re.findall(r"<th>([^<]*)</th>", table[0])
    assert head[:2] == ["rank", "bubble"]
    for row in re.findall(r"<tr>(<td>.*?)</tr>", table[0]):
        cells = dict(zip(head, re.findall(r"<td>([^<]*)</td>", row), strict=True))
        reasons = [float(cells[reason.value].rstrip("%")) for reason in Reason if reason.value in cells]
        assert sum(reasons) == pytest.approx(float(cells["bubble"].rstrip("%")), abs=0.1 * len(reasons))


def test_a_timeline_that_cannot_be_made_is_refused_and_leaves_no_file(tmp_path: Path):
    with pytest.raises(Mismatch, match="1 trace, or 1 simulated and 1 measured"):
        save_timeline(PLAN, [SIM, SIM], tmp_path / "t.html")
    with pytest.raises(Mismatch, match="the sim trace is of plan"):
        save_timeline(chain("ab", 1, 1), [SIM], tmp_path / "t.html")
    with pytest.raises(Mismatch, match="steps = 0"):
        save_timeline(PLAN, [SIM], tmp_path / "t.html", steps=0)
    with pytest.raises(InvalidFile, match="existing, writable folder"):
        save_timeline(PLAN, [SIM], tmp_path / "no" / "t.html")
    assert list(tmp_path.iterdir()) == []


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "t.html"
    save_timeline(PLAN, [SIM, RUN], path)
    return path


FRAMES = """
const plots = Bokeh.documents[0]._all_models ? [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === "Figure") : []
return plots.map(p => [p.x_range.start, p.x_range.end])
"""

# The box of the first act on the page, in pixels of the viewport.
FIRST_BOX = """
const views = Object.values(Bokeh.index).length ? [...Object.values(Bokeh.index)] : [...Bokeh.index]
const all = []
const walk = (view) => { all.push(view); for (const child of view.child_views ?? []) walk(child) }
for (const view of views) walk(view)
const plot = all.find(view => view.model.type === "Figure")
const box = plot.canvas_view.el.getBoundingClientRect()
const at = (x, y) => [box.left + plot.frame.x_scale.compute(x), box.top + plot.frame.y_scale.compute(y)]
return at(X, Y)
"""

TIPS = """
const texts = []
const walk = (node) => {
  if (node.shadowRoot) walk(node.shadowRoot)
  for (const child of node.children ?? []) walk(child)
  if (node.classList?.contains("bk-tooltip-row-value") && node.checkVisibility()) texts.push(node.textContent.trim())
}
walk(document.body)
return texts
"""


def count(pixels: np.ndarray, colour: str) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels.astype(int) - wanted).max(axis=-1) <= 6).sum())


@needs_browser
def test_the_page_draws_its_acts_without_a_complaint_and_without_the_network(browser: Browser, page: Path):
    browser.open(page)
    pixels = browser.screenshot()
    for kind in ("FORWARD", "BACKWARD", "UPDATE", "TRANSFER"):
        colour = next(colour for known, colour in COLOURS.items() if known.name == kind)
        assert count(pixels, colour) > 200, kind
    assert browser.complaints() == []
    assert browser.script("return performance.getEntriesByType('resource').map(e => e.name)") == []


@needs_browser
def test_the_wheel_zooms_acts_and_memory_together(browser: Browser, page: Path):
    browser.open(page)
    before = browser.script(FRAMES)
    assert len(before) == 2 * (1 + PLAN.num_ranks)
    x, y = browser.script(FIRST_BOX.replace("X, Y", "10, 1"))
    browser.cdp("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-400)
    browser.wait(
        FRAMES.replace("return plots.map", f"const start = {before[0][0]}; return plots.every(p => p.x_range.start > start) && plots.map")
    )
    after = browser.script(FRAMES)
    assert len({tuple(frame) for frame in after}) == 1
    assert after[0][1] - after[0][0] < before[0][1] - before[0][0]


@needs_browser
def test_the_pointer_is_told_what_an_act_is_and_why_a_stream_is_idle(browser: Browser, page: Path):
    browser.open(page)
    rows = gantt_rows(PLAN, [SIM, RUN])
    window = show_last(PLAN, SIM, 2)
    act = next(act for act in SIM.acts if act.task == "B1")
    gap = next(gap for gap in idle_times(PLAN, SIM) if gap.stream == "compute1" and gap.reason is Reason.LINK)
    for begin_s, end_s, row, wanted in (
        (act.start_s, act.end_s, (1, "compute1"), "backward, rank 1, step 0, micro-batch 0"),
        (gap.begin_s, gap.end_s, (1, "compute1"), str(gap)),
    ):
        middle = ((begin_s + end_s) / 2 - window.begin_s) * 1e3
        x, y = browser.script(FIRST_BOX.replace("X, Y", f"{middle}, {rows.index(row)}"))
        browser.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        browser.wait(TIPS.replace("return texts", f"return texts.includes({json.dumps(wanted)})"))


@needs_browser
def test_the_page_follows_the_colour_scheme_of_its_reader(browser: Browser, page: Path):
    shades = {}
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(page)
        pixels = browser.screenshot()
        shades[scheme] = float(np.median(pixels))
        ink = browser.script("return [...Bokeh.documents[0]._all_models.values()].find(m => m.type === 'Title').text_color")
        inks = ink["value"] if isinstance(ink, dict) else ink
        assert inks == {"light": "#222222", "dark": "#DDDDDD"}[scheme]
        # What is written stands out from what it is written on.
        strip = pixels[:200, :700].reshape(-1, 3).mean(axis=1)
        assert strip.max() - strip.min() > 150
    assert shades["light"] > 230
    assert shades["dark"] < 60
