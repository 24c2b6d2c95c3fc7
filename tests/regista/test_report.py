"""Reports: what a comparison finds, what a table of rows holds against what, the cards of the index, and the pages in a real browser."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.files import save_trace
from planner.ir.trace import Source
from regista.cli import main
from regista.report import read_claims, save_comparison, save_folder
from regista.report.findings import find
from regista.report.rows import Rows, held_pairs, noise_floor, read_rows
from regista.report.rows_page import save_rows_page
from regista.report.svg import histogram, parity
from regista.report.whatif import TracePrices, what_if_changes
from simulator import chain_period_s, simulate

PLAN = pipeline(2, 4)
COST = TableCost({"load": 1e-4}, latency_s=1e-5, default_s=1e-3)
SIM = replace(simulate(PLAN, COST, steps=3), message_s={"0->1": COST.latency_s, "1->0": COST.latency_s})
RUN = replace(simulate(PLAN, TableCost({"F0": 2e-3}, default_s=1e-3), steps=6), source=Source.RUN, performer="story")

VOID = {"meta", "link", "img", "br", "hr", "input", "line", "rect", "circle"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.feed(re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", text, flags=re.DOTALL))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.fetched += [str(found[key]) for key in ("src", "srcset", "poster") if key in found]
        if "href" in found:
            (self.links if tag == "a" else self.fetched).append(str(found["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def checked(path: Path) -> Page:
    text = path.read_text()
    page = Page(text)
    assert page.wrong == []
    assert page.open == []
    assert [source for source in page.fetched if not source.startswith("data:")] == []
    assert "@import" not in text.split("<script")[0]
    return page


# --- findings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, data_parallel(2), chain("ab", (2, 1), acts=2)], ids=["pipeline", "data", "chain"])
def test_the_first_what_if_is_the_prediction_itself(plan):
    sim = replace(simulate(plan, COST, steps=3), message_s={"0->1": COST.latency_s, "1->0": COST.latency_s})
    first = what_if_changes(plan, sim)[0]
    assert first.step_s == pytest.approx(sim.step_times_s(plan)[-1], rel=1e-12)
    assert first.register_bytes == max(sim.register_bytes.values())


@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 2))
def test_what_ifs_of_a_chain_take_the_closed_forms_period(times_s, quota):
    plan = chain("abc", quota, acts=2)  # a step of two acts holds whole turns of quotas 1 and 2
    rows = {
        row.what: row
        for row in what_if_changes(plan, simulate(plan, TableCost(dict(zip("abc", map(float, times_s), strict=True))), steps=40))
    }
    assert rows["as it is"].step_s == pytest.approx(2 * chain_period_s(times_s, (quota, quota)))
    assert rows["one block of every regst"].step_s == pytest.approx(2 * chain_period_s(times_s, (1, 1)))
    halved_s = [times_s[0], times_s[1] / 2, times_s[2] / 2]  # the first reads data, which is no work of the device
    assert rows["devices twice as fast"].step_s == pytest.approx(2 * chain_period_s(halved_s, (quota, quota)))
    if quota == 1:
        assert rows["one block more of every regst"].step_s == pytest.approx(2 * chain_period_s(times_s, (2, 2)))


def test_prices_of_a_trace_are_its_acts_durations():
    prices = TracePrices.of(SIM, lambda task: 2.0 if task.id == "F0" else 1.0)
    for task in PLAN.tasks:
        for rank in PLAN.ranks_of(task):
            assert prices.act_s(PLAN, task, rank) == pytest.approx(COST.act_s(PLAN, task, rank) * (2 if task.id == "F0" else 1))


def test_a_change_that_does_not_fit_says_so_instead_of_a_step_time():
    limit = max(SIM.peak_bytes.values())
    device = replace(PLAN.cluster.device, memory_bytes=limit)
    plan = replace(PLAN, cluster=replace(PLAN.cluster, device=device))
    rows = {row.what: row for row in what_if_changes(plan, replace(simulate(plan, COST, steps=3)))}
    fuller = [row for row in rows.values() if row.step_s is None]
    assert fuller
    assert all("does not fit" in row.why_not for row in fuller)
    assert rows["as it is"].step_s is not None


def test_errors_of_acts_are_predicted_over_measured_after_the_warm_up():
    found = find(PLAN, SIM, RUN, warmup=2)
    assert {act.number // PLAN.task[act.task].acts for act in found.acts} == {2, 3, 4, 5}
    by_task = {act.task: act.error for act in found.acts}
    assert by_task["F0"] == pytest.approx(-0.5)
    assert by_task["F1"] == pytest.approx(0.0, abs=1e-9)


def test_memory_of_a_rank_is_the_traces_own_count():
    found = find(PLAN, SIM, RUN)
    assert {str(m.rank): m.held.predicted for m in found.memory} == SIM.register_bytes
    assert {str(m.rank): m.held.measured for m in found.memory} == RUN.register_bytes
    assert all(m.held.predicted <= m.peak_sim <= m.planned for m in found.memory)


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(*lines: str) -> Rows:
    head, *rest = (line.split(",") for line in lines)
    return Rows(name="t", columns=tuple(head), rows=tuple(dict(zip(head, cells, strict=True)) for cells in rest))


def test_columns_of_two_kinds_make_a_pair_per_row():
    (held,) = held_pairs(rows_of("model,sim_step_s,run_step_s", "a,1.5,1.0", "b,2.0,", "c,4.0,5.0"))
    assert (held.quantity, held.predicted, held.given) == ("step_s", "sim", "run")
    assert held.errors == pytest.approx((0.5, -0.2))
    assert [name for _, _, name in held.points] == ["a", "c"]


def test_kinds_after_the_quantity_are_found_too_and_sim_goes_before_theory():
    (held,) = held_pairs(rows_of("m,bubble_theory,bubble_sim,bubble_paper", "a,0.1,0.2,0.4"))
    assert (held.predicted, held.given, held.errors) == ("sim", "paper", (-0.5,))


def test_rows_of_two_kinds_are_paired_when_all_but_their_floats_is_alike():
    table = rows_of("quota,kind,step_s,load", "1,sim,2.0,", "1,run,2.5,0.5", "2,sim,1.0,", "2,run,0.5,1.5", "3,sim,9.0,")
    (held,) = held_pairs(table)
    assert held.points == ((2.0, 2.5, "1"), (1.0, 0.5, "2"))


def test_a_point_that_is_predicted_and_then_run_is_one_point():
    table = rows_of("point_id,label,phase,sim_step_s,run_step_s", "p,a b,sim,2.0,", "q,c,sim,3.0,", "p,a b,run,,4.0")
    (held,) = held_pairs(table)
    assert held.points == ((2.0, 4.0, "a b"),)


def test_sets_of_points_are_held_together_and_each_by_itself():
    found = held_pairs(rows_of("data,point,sim_s,paper_s", "u,a,2.0,1.0", "v,b,3.0,1.0", "v,c,1.0,1.0"))
    assert {held.quantity: held.errors for held in found} == {"time_s": (1.0, 2.0, 0.0), "time_s of u": (1.0,), "time_s of v": (2.0, 0.0)}


def test_the_noise_floor_is_run_against_run():
    table = rows_of("point_id,run_step_s,run_again_step_s", "p,2.0,2.5", "q,1.0,", "r,4.0,3.0")
    assert noise_floor(table) == pytest.approx((0.25, 0.25))
    assert noise_floor(rows_of("sim_step_s,run_step_s", "1.0,2.0")) == ()


def test_rows_that_were_fitted_are_no_predictions():
    (held,) = held_pairs(rows_of("role,sim_x,paper_x", "fitted (loss),1.0,1.0", "predicted,2.0,4.0"))
    assert held.errors == (-0.5,)


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=20, unique=True))
def test_a_monotone_prediction_has_rank_correlation_one(values):
    table = rows_of("m,sim_x,run_x", *(f"p{i},{v * v!r},{v!r}" for i, v in enumerate(values)))
    (held,) = held_pairs(table)
    assert held.rank_correlation == pytest.approx(1.0)


def test_a_table_with_a_torn_line_is_refused_with_its_number(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(InvalidFile, match=r"line 3 has another number of cells"):
        read_rows(path)


@given(st.lists(st.floats(-3, 3), max_size=60))
def test_a_histogram_counts_every_value_once(values):
    text = histogram(values, "error", most=1.0)
    counts = [int(n) for n in re.findall(r"<title>(\d+) between", text)]
    assert sum(counts) == len(values)
    if outside := sum(abs(v) > 1.0 for v in values):
        assert f"{outside} beyond the scale" in text


def test_a_perfect_prediction_lies_on_the_line_of_equality():
    text = parity([(1.0, 1.0, "a"), (10.0, 10.0, "b")], "run", "sim")
    x1, y1, x2, y2 = map(float, re.findall(r'class="zero" x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)"', text)[0])
    for x, y in re.findall(r'cx="(.*?)" cy="(.*?)"', text):
        assert (float(x) - x1) / (x2 - x1) == pytest.approx((float(y) - y1) / (y2 - y1), abs=1e-3)


# --- claims -----------------------------------------------------------------------------------------------------------

README = """# Experiments

## Pipelines

| claim | command | status |
|---|---|---|
| a second block <helps> | `make a \\| b` | **held**, [picture](figures/f.png), [CSV](results/r.csv) |
| another | `x` | not run |

| no | commands here |
|---|---|
| a | b |
"""
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("figures", "results"):
        (tmp_path / "e" / name).mkdir(parents=True)
    (tmp_path / "e/README.md").write_text(README)
    (tmp_path / "e/figures/f.png").write_bytes(PIXEL)
    (tmp_path / "e/results/r.csv").write_text("model,sim_step_s,run_step_s\na,1.5,1.0\n")
    save_trace(PLAN, SIM, str(tmp_path / "e/sim.json"))
    save_trace(PLAN, RUN, str(tmp_path / "e/run.json"))
    return tmp_path / "e"


def test_every_row_of_a_table_with_commands_is_a_claim(folder: Path):
    first, second = read_claims(folder / "README.md")
    assert (first.section, first.what, second.what) == ("Pipelines", "a second block <helps>", "another")
    assert first.fields["command"] == "`make a | b`"
    assert (first.pictures, first.tables) == ((folder / "figures/f.png",), (folder / "results/r.csv",))
    assert second.pictures == ()


def test_a_claim_stands_in_the_column_that_says_so_and_the_same_command_is_the_one_above(tmp_path: Path):
    path = tmp_path / "README.md"
    path.write_text(
        "| command | what it does |\n|---|---|\n| a | b |\n\n"
        "| source | claim, in words | module | command |\n|---|---|---|---|\n| D | one | m | `x` |\n| K | two | m | the same |\n"
        "| K | three | n | `y` |\n| K | four | m | as above |\n"
    )
    claims = read_claims(path)
    assert [claim.what for claim in claims] == ["one", "two", "three", "four"]
    assert [claim.fields["command"] for claim in claims] == ["`x`", "`x`", "`y`", "`x`"]
    assert dict(claims[0].fields) == {"source": "D", "module": "m", "command": "`x`"}


def test_a_claim_whose_picture_is_missing_is_refused(folder: Path):
    (folder / "figures/f.png").unlink()
    with pytest.raises(InvalidFile, match=r"README.md:7: links to .*f\.png, which is not there"):
        read_claims(folder / "README.md")


def test_the_committed_table_of_experiments_can_be_read():
    claims = read_claims(Path(__file__).parents[2] / "experiments" / "README.md")
    assert len(claims) >= 10
    assert all(claim.fields["command"] for claim in claims)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_folder_becomes_an_index_whose_links_and_pictures_are_all_there(folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    written = save_folder(folder, out)
    page = checked(out / "index.html")
    assert page.fetched == ["data:image/png;base64," + base64.b64encode(PIXEL).decode()]
    assert page.links
    assert all((out / link).is_file() for link in page.links)
    assert {path.name for path in out.iterdir()} == {"index.html", *written.comparisons, *written.tables}
    assert written.comparisons == (f"compare-{PLAN.plan_id}.html",)
    assert "&lt;helps&gt;" in (out / "index.html").read_text()
    for name in (*written.comparisons, *written.tables):
        checked(out / name)


def test_an_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidFile, match=r"no CSV, no pair of traces"):
        save_folder(tmp_path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_the_numbers_of_the_comparison_and_needs_no_other_file(tmp_path: Path):
    path = tmp_path / "p.html"
    found = save_comparison(PLAN, SIM, RUN, path)
    checked(path)
    text = path.read_text()
    assert f"{found.comparison.step_time_s.relative_error:+.1%}" in text
    for row in found.changes:
        assert f"<td>{row.what}</td>" in text
    for heading in ("Times", "Memory", "Predicted above measured, and memory", "Errors of acts", "What if"):
        assert f"<h2>{heading}</h2>" in text


def test_text_of_a_plan_and_of_a_table_is_escaped(tmp_path: Path):
    plan = replace(PLAN, model="<script>alert(1)</script>")
    sim, run = (replace(trace, plan_id=plan.plan_id) for trace in (SIM, RUN))
    save_comparison(plan, sim, run, tmp_path / "p.html")
    save_rows_page(rows_of("<script>alert(1),b", "<script>alert(2),3"), tmp_path / "r.html")
    assert "<script>alert" not in (tmp_path / "p.html").read_text() + (tmp_path / "r.html").read_text()


def test_the_verb_writes_both_kinds_of_pages_and_refuses_the_rest(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sim, run = str(folder / "sim.json"), str(folder / "run.json")
    assert main(["report", sim, run, "--out", str(tmp_path / "p.html"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["comparison"]["plan_id"] == PLAN.plan_id
    assert data["what_if"][0]["sim_step_s"] == pytest.approx(data["comparison"]["step_time_s"]["predicted"])
    assert main(["report", str(folder), "--out", str(tmp_path / "pages")]) == 0
    assert "2 cards, and 2 pages beside it" in capsys.readouterr().out
    before = sorted(tmp_path.rglob("*"))
    for given_wrong in ([run, sim], [sim], [sim, run, sim], [sim, str(folder / "results/r.csv")]):
        assert main(["report", *given_wrong, "--out", str(tmp_path / "new.html")]) == 2
        assert "regista report: " in capsys.readouterr().err
    assert main(["report", sim, run, "--out", sim]) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_traces_of_two_plans_make_no_page(tmp_path: Path):
    with pytest.raises(Mismatch, match="trace is of plan"):
        save_comparison(chain("ab", 1, 1), SIM, RUN, tmp_path / "p.html")
    assert list(tmp_path.iterdir()) == []


# --- in a browser -----------------------------------------------------------------------------------------------------


def _timeline_tests():
    """The browser of the timeline's tests, wherever pytest has put that module."""
    name = "timeline_tests_of_report"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("test_timeline.py"))
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
    save_folder(folder, tmp_path / "out")
    browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.scheme(scheme)
    paper = browser.script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert paper == (scheme == "dark")
    for page in ("index.html", "r.html", f"compare-{PLAN.plan_id}.html"):
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
