"""Reports: what a comparison finds, what a table of rows holds against what, the cards of the index, and the pages in a real browser."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.path import Path as Path2D
from measured_sweep import MANIFEST, measured_csv
from PIL import Image
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.files import save_trace
from planner.ir.traces.trace import Source
from regista.cli import main
from regista.report import load_claims, save_comparison, save_folder
from regista.report.charts import histogram, parity, residuals, sets_of
from regista.report.findings import find
from regista.report.html import bytes_cell
from regista.report.measured import by_group, by_kind, is_measured_sweep, measured_points
from regista.report.pages.rows_page import save_rows_page
from regista.report.pages.sweep_page import save_sweep_page
from regista.report.pictures import data_uri, shortened_svg, small_data_uri
from regista.report.rows import Rows, noise_floor, predicted_quantities, read_rows
from regista.report.whatif import TracePrices, what_if_changes
from regista.sweep import load_manifest
from simulator import simulate
from simulator.theory import chain_period_s

PLAN = pipeline(2, 4)
COST = TableCost({"load": 1e-4}, latency_s=1e-5, default_s=1e-3)
SIM = replace(simulate(PLAN, COST, steps=3), message_s={"0->1": COST.latency_s, "1->0": COST.latency_s})
RUN = replace(simulate(PLAN, TableCost({"F0": 2e-3}, default_s=1e-3), steps=6), source=Source.RUN, performer="story")

VOID = {"meta", "link", "img", "br", "hr", "input", "line", "rect", "circle", "polygon"}


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
        value_of = dict(attrs)
        self.fetched += [str(value_of[key]) for key in ("src", "srcset", "poster") if key in value_of]
        if "href" in value_of:
            (self.links if tag == "a" else self.fetched).append(str(value_of["href"]))
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
    assert first.step_s == pytest.approx(sim.settled_step_s(plan), rel=1e-12)
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


@pytest.mark.parametrize(
    ("predicted", "counted", "shown"), [(8, 8, "0 B"), (1e8 + 8, 1e8, "+8 B"), (90, 100, "-10.0%"), (5, 0, "+5 B"), (2e8, 1e8, "+100.0%")]
)
def test_a_difference_of_bytes_is_never_shown_as_none(predicted, counted, shown):
    assert re.sub("<[^>]*>", "", bytes_cell(predicted, counted)) == shown


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
    comparison = find(PLAN, SIM, RUN, warmup=2)
    assert {act.number // PLAN.task[act.task].acts for act in comparison.acts} == {2, 3, 4, 5}
    by_task = {act.task: act.error for act in comparison.acts}
    assert by_task["F0"] == pytest.approx(-0.5)
    assert by_task["F1"] == pytest.approx(0.0, abs=1e-9)


def test_memory_of_a_rank_is_the_traces_own_count():
    comparison = find(PLAN, SIM, RUN)
    assert {str(m.rank): m.held.predicted for m in comparison.memory} == SIM.register_bytes
    assert {str(m.rank): m.held.measured for m in comparison.memory} == RUN.register_bytes
    assert all(m.held.predicted <= m.peak_sim <= m.planned for m in comparison.memory)


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(*lines: str) -> Rows:
    head, *rest = (line.split(",") for line in lines)
    return Rows(name="t", columns=tuple(head), rows=tuple(dict(zip(head, cells, strict=True)) for cells in rest))


def test_columns_of_two_kinds_make_a_pair_per_row():
    (held,) = predicted_quantities(rows_of("model,sim_step_s,run_step_s", "a,1.5,1.0", "b,2.0,", "c,4.0,5.0"))
    assert (held.name, held.predicted, held.given) == ("step_s", "sim", "run")
    assert held.errors == pytest.approx((0.5, -0.2))
    assert [name for _, _, name in held.points] == ["a", "c"]


def test_kinds_after_the_quantity_are_found_too_and_sim_goes_before_theory():
    (held,) = predicted_quantities(rows_of("m,bubble_theory,bubble_sim,bubble_paper", "a,0.1,0.2,0.4"))
    assert (held.predicted, held.given, held.errors) == ("sim", "paper", (-0.5,))


def test_rows_of_two_kinds_are_paired_when_all_but_their_floats_is_alike():
    table = rows_of("quota,kind,step_s,load", "1,sim,2.0,", "1,run,2.5,0.5", "2,sim,1.0,", "2,run,0.5,1.5", "3,sim,9.0,")
    (held,) = predicted_quantities(table)
    assert held.points == ((2.0, 2.5, "1"), (1.0, 0.5, "2"))


def test_a_point_that_is_predicted_and_then_run_is_one_point():
    table = rows_of("point_id,label,phase,sim_step_s,run_step_s", "p,a b,sim,2.0,", "q,c,sim,3.0,", "p,a b,run,,4.0")
    (held,) = predicted_quantities(table)
    assert held.points == ((2.0, 4.0, "a b"),)


def test_allocated_registers_are_held_against_those_of_the_plan():
    (held,) = predicted_quantities(rows_of("m,sim_register_bytes,theory_register_bytes,run_register_bytes", "a,60,100,100"))
    assert (held.predicted, held.errors) == ("theory", (0.0,))
    (held,) = predicted_quantities(rows_of("m,sim_register_bytes,run_register_bytes", "a,50,100"))
    assert (held.predicted, held.errors) == ("sim", (-0.5,))


def test_sets_of_points_are_held_together_and_each_by_itself():
    quantities = predicted_quantities(rows_of("data,point,sim_s,paper_s", "u,a,2.0,1.0", "v,b,3.0,1.0", "v,c,1.0,1.0"))
    assert {held.name: held.errors for held in quantities} == {"time_s": (1.0, 2.0, 0.0), "time_s of u": (1.0,), "time_s of v": (2.0, 0.0)}


def test_the_noise_floor_is_run_against_run():
    table = rows_of("point_id,run_step_s,run_again_step_s", "p,2.0,2.5", "q,1.0,", "r,4.0,3.0")
    assert noise_floor(table) == pytest.approx((0.25, 0.25))
    assert noise_floor(rows_of("sim_step_s,run_step_s", "1.0,2.0")) == ()


def test_rows_that_were_fitted_are_no_predictions():
    (held,) = predicted_quantities(rows_of("role,sim_x,paper_x", "fitted (loss),1.0,1.0", "predicted,2.0,4.0"))
    assert held.errors == (-0.5,)


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=20, unique=True))
def test_a_monotone_prediction_has_rank_correlation_one(values):
    table = rows_of("m,sim_x,run_x", *(f"p{i},{v * v!r},{v!r}" for i, v in enumerate(values)))
    (held,) = predicted_quantities(table)
    assert held.rank_correlation == pytest.approx(1.0)


def test_a_table_with_a_torn_line_is_refused_with_its_number(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(InvalidFile, match=r"line 3 has another number of cells"):
        read_rows(path)


# --- charts -----------------------------------------------------------------------------------------------------------


def told(figure: Figure) -> list:
    """The bars or dots of a chart that say something, in the order in which they are drawn."""
    (axes,) = figure.axes
    return [shape for shape in axes.get_children() if shape.get_gid() == "told"]


def shade(figure: Figure) -> Path2D:
    """The band of a chart, as a closed line in its own units."""
    (axes,) = figure.axes
    (patch,) = [shape for shape in axes.get_children() if shape.get_alpha() == 0.18]
    return patch.get_paths()[0] if isinstance(patch, PolyCollection) else patch.get_path().transformed(patch.get_patch_transform())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 3), max_size=60))
def test_a_histogram_counts_every_value_once(values):
    chart = histogram(values, "error", most=1.0)
    if not values:
        assert (chart.figure, chart.__html__()) == (None, "<p>Nothing to draw.</p>")
        return
    assert sum(bar.get_height() for bar in told(chart.figure)) == len(values)
    assert [int(said.split()[0]) for said in chart.said] == [bar.get_height() for bar in told(chart.figure)]
    for value in values:
        inside = [bar for bar in told(chart.figure) if bar.get_x() <= min(max(value, -1.0), 1.0) < bar.get_x() + 2 / 41 + 1e-9]
        assert inside, "the bar over the value itself, or the outermost one"
    if outside := sum(abs(value) > 1.0 for value in values):
        assert f"{outside} beyond the scale" in chart.__html__()


def test_a_perfect_prediction_lies_on_the_line_of_equality():
    (axes,) = parity([(1.0, 1.0, "a"), (10.0, 10.0, "b")], "run", "sim").figure.axes
    equality = next(line for line in axes.lines if line.get_linestyle() == "--")
    assert list(equality.get_xdata()) == list(equality.get_ydata()) == list(axes.get_xlim()) == list(axes.get_ylim())
    (dots,) = [line for line in axes.lines if line.get_gid() == "told"]
    assert list(dots.get_xdata()) == list(dots.get_ydata()) == [1.0, 10.0]


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(-0.9, 3.0))
def test_a_dot_lies_in_the_band_exactly_when_its_error_is_within_it(x, error):
    assume(abs(abs(error) - 0.05) > 1e-6)
    point = x, x * (1 + error)
    beside = [(1e-4, 1e-4, "low"), (1e4, 1e4, "high")]
    assert shade(parity([(*point, "a"), *beside], "run", "sim", band=0.05).figure).contains_point(point) == (abs(error) <= 0.05)
    across = shade(residuals([(x, error, "a"), *beside], "run", "error", band=0.05).figure).vertices[:, 1]
    assert (across.min() <= error <= across.max()) == (abs(error) <= 0.05)


def test_residuals_are_drawn_over_the_measured_time_with_zero_in_the_middle():
    (axes,) = residuals([(1.0, 0.5, "a"), (10.0, -0.25, "b"), (5.0, 0.0, "c")], "run", "error", band=0.05).figure.axes
    (dots,) = [line for line in axes.lines if line.get_gid() == "told"]
    assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == [(1.0, 0.5), (10.0, -0.25), (5.0, 0.0)]
    low, high = axes.get_ylim()
    assert low == -high
    assert high > 0.5


def test_a_chart_is_a_drawing_of_the_page_each_dot_says_what_it_is_in_the_colour_of_its_set():
    points = [(1.0, 2.0, "a <b>"), (3.0, 4.0, "c"), (5.0, 6.0, "d")]
    text = parity(points, "run", "sim", band=0.05, sets=["u", "v", "u"]).__html__()
    drawing = ElementTree.fromstring(text)
    assert [title.text for title in drawing.iter("{http://www.w3.org/2000/svg}title")] == [
        "a <b>: run 1, sim 2", "d: run 5, sim 6", "c: run 3, sim 4",
    ]  # fmt: skip
    dots = re.findall(r'<use xlink:href="#\w+"[^>]*fill: var\(--(\w+)\)', text)
    assert dots == ["set0", "set0", "set1"]
    assert sets_of(["u", "v", "u"]) == {"u": "set0", "v": "set1"}
    assert set(re.findall(r"(?:fill|stroke): (?!none|var)([^;\"]+)", text)) == set(), "every colour is the page's"
    assert "<style" not in text
    assert "font-family" not in text


# --- measured sweeps --------------------------------------------------------------------------------------------------

SWEPT = (
    "point_id,phase,label,model,cluster,layers,micro_batches,plan_id,status,sim_step_s,sim_forward_s,theory_device_bytes,"
    "run_step_s,run_again_step_s,run_forward_s,run_process_base_bytes,theory_process_bytes,run_isolated_kept_bytes,"
    "run_process_peak_bytes,error_process_peak_share,error_register_bytes",
    "p,predicted,two,zoo:gpt,local:2,2,1,x,ok,9.0,1.0,50,,,,,,,,,",
    "p,performed,two,zoo:gpt,local:2,2,1,x,ok,1.92,1.0,50,2.0,2.2,0.8,100,40,10,200,-0.25,0",
    "q,performed,two in four,zoo:gpt,local:2,2,4,y,ok,1.8,1.0,50,2.5,2.5,1.0,100,,,125,0.2,8",
    "r,performed,four,zoo:gpt,local:2,4,1,z,ok,4.0,3.0,60,4.0,3.6,3.0,100,,,160,0.0,0",
    "s,predicted,not run,zoo:gpt,local:2,4,4,z,ok,3.0,3.0,60,,,,,,,,,",
    "t,performed,ended badly,zoo:gpt,local:2,4,8,z,WorkerFailed,3.0,3.0,60,,,,,,,,,",
    "p,predicted,two,zoo:gpt,local:2,2,1,x,ok,7.0,1.0,50,,,,,,,,,",
)


def test_a_point_is_its_last_run_with_the_prediction_that_was_made_for_it():
    points = measured_points(rows_of(*SWEPT))
    assert [(point.point_id, point.sim_s, point.run_s) for point in points] == [("p", 1.92, 2.0), ("q", 1.8, 2.5), ("r", 4.0, 4.0)]
    assert [point.error for point in points] == pytest.approx([-0.04, -0.28, 0.0])
    assert [point.noise for point in points] == pytest.approx([0.1, 0.0, -0.1])
    again = rows_of(*SWEPT, SWEPT[2].replace("1.92", "2.1"))
    assert measured_points(again)[0].sim_s == 2.1


def test_only_a_sweep_of_which_a_point_was_run_is_measured():
    assert is_measured_sweep(rows_of(*SWEPT))
    assert not is_measured_sweep(rows_of(*SWEPT[:2]))
    assert not is_measured_sweep(rows_of("sim_step_s,run_step_s", "1.0,2.0"))


def test_the_choice_is_what_trusting_the_prediction_costs():
    small, large = by_group(measured_points(rows_of(*SWEPT)), lambda point: point.cells["layers"])
    assert (small.fastest.label, large.fastest.label) == ("two in four", "four")
    assert (small.choice, large.choice) == pytest.approx((0.25, 0.0))
    assert small.rank_correlation is None


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=3, max_size=12))
def test_the_choice_is_never_negative_and_zero_for_a_prediction_in_order(times):
    lines = [f"{i},performed,{i},ok,{sim!r},{run!r}" for i, (sim, run) in enumerate(times)]
    (group,) = by_group(measured_points(rows_of("point_id,phase,label,status,sim_step_s,run_step_s", *lines)), lambda _: "")
    assert group.choice >= 0
    lines = [f"{i},performed,{i},ok,{run * run!r},{run!r}" for i, (_, run) in enumerate(times)]
    (group,) = by_group(measured_points(rows_of("point_id,phase,label,status,sim_step_s,run_step_s", *lines)), lambda _: "")
    assert group.choice == 0


def test_errors_of_a_kind_are_of_its_busy_seconds():
    (forward,) = by_kind(measured_points(rows_of(*SWEPT)))
    assert forward.kind.value == "forward"
    assert forward.errors == pytest.approx((0.25, 0.0, 0.0))
    assert forward.share == pytest.approx(1.0)


def test_the_page_of_a_measured_sweep_shows_its_points_memory_and_groups(tmp_path: Path):
    save_sweep_page(rows_of(*SWEPT), tmp_path / "s.html")
    page = checked(tmp_path / "s.html")
    text = (tmp_path / "s.html").read_text()
    assert page.fetched == []
    assert text.count("<use ") == 6  # three points in two pictures
    assert "3 points were predicted, then run; 2 more have no run" in text
    assert "2 of 3 points lie in it" in text
    assert "gpt, layers 2" in text
    assert "is 0 at 2 of 3 points" in text
    processes = text[text.index("Memory: processes") : text.index("Kinds of tasks")]
    assert re.findall(r"<tr><td class=\"words\">two</td>(.*?)</tr>", processes) == [
        '<td>100 B</td><td>40 B</td><td>10 B</td><td>200 B</td><td><span class="bad">-25.0%</span></td>'
    ]
    assert "<h2>Relations</h2>" not in text


def test_relations_of_a_measured_sweep_are_held_broken_or_not_checked(tmp_path: Path):
    (tmp_path / "m.toml").write_text(MANIFEST)
    manifest = load_manifest(tmp_path / "m.toml")
    csv = tmp_path / "m.csv"
    csv.write_text(measured_csv(manifest, ((1.0, 1.1), (3.0, 2.9))))
    save_sweep_page(read_rows(csv), tmp_path / "m.html", manifest=manifest, csv=csv)
    checked(tmp_path / "m.html")
    text = (tmp_path / "m.html").read_text()
    states = re.findall(r"<tr><td class=\"words\"><code>.*?</code></td><td>(.*?)</td>", text)
    assert states == ["held", '<span class="bad">broken</span>', "not checked"]
    assert "1 of 3 hold" in text
    assert "a claim &lt;of&gt; ours" in text


# --- pictures ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=9))
def test_a_shortened_drawing_moves_nothing_by_a_hundredth(places):
    text = f'<svg><!-- x --><g transform="scale(0.015625)"><path d="M {" L ".join(f"{p:.6f} {p:.6f}" for p in places)}"/></g></svg>'
    short = shortened_svg(text)
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", short[short.index(' d="') :])]
    assert numbers == pytest.approx([p for p in places for _ in (0, 1)], abs=0.0101)
    assert 'scale(0.015625)"' in short
    assert "<!--" not in short


def test_a_small_picture_is_narrow_and_never_longer_than_the_whole(tmp_path: Path):
    wide = Image.radial_gradient("L").resize((2000, 1000)).convert("RGBA")
    wide.save(tmp_path / "wide.png")
    small = small_data_uri(tmp_path / "wide.png")
    with Image.open(io.BytesIO(base64.b64decode(small.partition(",")[2]))) as image:
        assert image.size == (760, 380)
    assert len(small) < len(data_uri(tmp_path / "wide.png"))
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    assert small_data_uri(tmp_path / "pixel.png") == data_uri(tmp_path / "pixel.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(InvalidFile, match=r"text\.png: is no picture"):
        small_data_uri(tmp_path / "text.png")


# --- claims -----------------------------------------------------------------------------------------------------------

CLAIMS = """
[[table]]
section = "Pipelines"
[table.headings]
claim = "claim"
command = "command"
status = "status"
[[table.claim]]
claim = "a second block <helps>"
command = "`make a | b`"
status = "**held**, [picture](figures/f.png), [CSV](results/r.csv): {r: sim_step_s / run_step_s - 1 | .1%} more"
[[table.claim]]
claim = "another"
module = "x"
status = "not run"
[paragraph]
said = "{r: sim_step_s[model == 'a'] | .1f} s"
"""
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("figures", "results"):
        (tmp_path / "e" / name).mkdir(parents=True)
    (tmp_path / "e/claims.toml").write_text(CLAIMS)
    (tmp_path / "e/figures/f.png").write_bytes(PIXEL)
    (tmp_path / "e/results/r.csv").write_text("model,sim_step_s,run_step_s\na,1.5,1.0\n")
    save_trace(PLAN, SIM, str(tmp_path / "e/sim.json"))
    save_trace(PLAN, RUN, str(tmp_path / "e/run.json"))
    return tmp_path / "e"


def test_a_record_is_a_claim_with_its_figures_computed_from_rows(folder: Path):
    claims = load_claims(folder / "claims.toml")
    first, second = claims.records
    assert (first.section, first.what, second.what) == ("Pipelines", "a second block <helps>", "another")
    assert list(first.fields) == ["claim", "command", "status"]
    assert first.fields["status"].endswith(": 50.0 % more")
    assert (first.pictures, first.tables) == ((folder / "figures/f.png",), (folder / "results/r.csv",))
    assert (second.pictures, second.fields["command"]) == ((), "`python -m experiments.x`")
    assert claims.paragraphs == {"said": "1.5 s"}


def test_a_figure_of_several_points_is_their_values_in_order(folder: Path):
    (folder / "results/r.csv").write_text("model,sim_step_s,run_step_s\na,1.5,1.0\nb,2,4\n")
    first, _ = load_claims(folder / "claims.toml").records
    assert first.fields["status"].endswith(": 50.0 %, -50.0 % more")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("figures/f.png", "figures/g.png", r"links to .*g\.png, which is not there"),
        ("{r: sim", "{q: sim", r"a figure is asked of .*q\.csv"),
        ("sim_step_s /", "sim_stop_s /", "did you mean sim_step_s"),
        ("model == 'a'", "model == 'b'", "no point has model == b"),
        ('module = "x"', 'modul = "x"', "did you mean module"),
        ('module = "x"', "", "give it a claim, and a manifest, a module or a command"),
        ("[[table]]", "[[table]", "cannot be read as TOML"),
        ("| .1f}", "| .q}", "cannot be written as '.q'"),
    ],
)
def test_claims_that_cannot_be_are_refused_with_the_way_out(folder: Path, before: str, after: str, says: str):
    assert before in CLAIMS
    (folder / "claims.toml").write_text(CLAIMS.replace(before, after, 1))
    with pytest.raises(InvalidFile, match=says):
        load_claims(folder / "claims.toml")


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


def test_a_picture_of_two_claims_stands_once_and_the_second_points_to_it(folder: Path, tmp_path: Path):
    (folder / "claims.toml").write_text(CLAIMS.replace('"not run"', '"[the same picture](figures/f.png)"'))
    save_folder(folder, tmp_path / "out")
    page = checked(tmp_path / "out/index.html")
    text = (tmp_path / "out/index.html").read_text()
    assert len(page.fetched) == 1
    assert '<a href="r.html"><img id="picture-0"' in text
    assert '<a href="#picture-0">f.png</a>' in text
    assert checked(tmp_path / "out/r.html").fetched == [data_uri(folder / "figures/f.png")]


def test_a_measured_sweep_in_a_folder_gets_its_own_page_with_the_relations_of_its_manifest(folder: Path, tmp_path: Path):
    (folder / "results/m.csv").write_text("\n".join(SWEPT) + "\n")
    (folder / "manifests").mkdir()
    (folder / "manifests/m.toml").write_text(MANIFEST)
    assert "m.html" in save_folder(folder, tmp_path / "out").tables
    text = (tmp_path / "out/m.html").read_text()
    assert "<h1>m: predicted against measured</h1>" in text
    assert "<h2>Relations</h2>" in text
    assert "2 of the manifest&#39;s 2 points are not in the CSV" in text


def test_an_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidFile, match=r"no CSV, no pair of traces"):
        save_folder(tmp_path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_the_numbers_of_the_comparison_and_needs_no_other_file(tmp_path: Path):
    path = tmp_path / "p.html"
    saved = save_comparison(PLAN, SIM, RUN, path)
    checked(path)
    text = path.read_text()
    assert f"{saved.comparison.step_time_s.relative_error:+.1%}" in text
    for row in saved.changes:
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
