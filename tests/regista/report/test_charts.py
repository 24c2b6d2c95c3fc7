"""Charts: a histogram, a parity plot, residuals."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.path import Path as Path2D

from regista.report.charts import histogram, parity, residuals, sets_of
from tests.tiers import examples


def titled(figure: Figure) -> list:
    """The bars or dots of a chart that say something, in the order in which they are drawn."""
    (axes,) = figure.axes
    return [shape for shape in axes.get_children() if shape.get_gid() == "titled"]


def shade(figure: Figure) -> Path2D:
    """The band of a chart, as a closed line in its own units."""
    (axes,) = figure.axes
    (patch,) = [shape for shape in axes.get_children() if shape.get_alpha() == 0.18]
    return patch.get_paths()[0] if isinstance(patch, PolyCollection) else patch.get_path().transformed(patch.get_patch_transform())


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.floats(-3, 3), max_size=60))
def test_a_histogram_counts_every_value_once(values):
    chart = histogram(values, "error", most=1.0)
    if not values:
        assert (chart.figure, chart.__html__()) == (None, "<p>Nothing to draw.</p>")
        return
    assert sum(bar.get_height() for bar in titled(chart.figure)) == len(values)
    assert [int(said.split()[0]) for said in chart.texts] == [bar.get_height() for bar in titled(chart.figure)]
    for value in values:
        inside = [bar for bar in titled(chart.figure) if bar.get_x() <= min(max(value, -1.0), 1.0) < bar.get_x() + 2 / 41 + 1e-9]
        assert inside, "the bar over the value itself, or the outermost one"
    if outside := sum(abs(value) > 1.0 for value in values):
        assert f"{outside} beyond the scale" in chart.__html__()


def test_a_perfect_prediction_lies_on_the_line_of_equality():
    (axes,) = parity([(1.0, 1.0, "a"), (10.0, 10.0, "b")], "run", "sim").figure.axes
    equality = next(line for line in axes.lines if line.get_linestyle() == "--")
    assert list(equality.get_xdata()) == list(equality.get_ydata()) == list(axes.get_xlim()) == list(axes.get_ylim())
    (dots,) = [line for line in axes.lines if line.get_gid() == "titled"]
    assert list(dots.get_xdata()) == list(dots.get_ydata()) == [1.0, 10.0]


@settings(max_examples=examples(50), deadline=None)
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
    (dots,) = [line for line in axes.lines if line.get_gid() == "titled"]
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
