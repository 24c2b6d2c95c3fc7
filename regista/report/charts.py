"""Charts of a page: matplotlib draws them, its SVG stands inside the page, takes the page's colours (light and dark) and needs no script.

matplotlib writes each colour as a number; the numbers of COLOURS are replaced by the variables of the style sheet.  Text stays text, in the page's
font, and the text of a dot or bar is shown when the pointer rests on it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regista.report.pictures import shortened_svg

__all__ = ["SETS", "Chart", "Point", "histogram", "parity", "residuals", "sets_of"]

SETS = tuple(f"set{number}" for number in range(6))
"""Colours of sets of points; more sets share the last one."""

_COLOURS = {name: f"#0000{number:02x}" for number, name in enumerate(("ink", "soft", "red", *SETS), 1)}
_STYLE: dict[Any, Any] = {
    "font.size": 12,
    "svg.fonttype": "none",
    "svg.hashsalt": "regista",
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _COLOURS["ink"]),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), _COLOURS["soft"]),
}
_BAND: Mapping[str, Any] = {"facecolor": _COLOURS["soft"], "alpha": 0.18, "linewidth": 0}
_MARGIN = 1.12
_TITLED = "titled"
"""The id of shapes that have a text."""
_SVG = "{http://www.w3.org/2000/svg}"
_REFERENCE = re.compile(r"#(\w+)")

Point = tuple[float, float, str]
"""(x, y, name)"""


def sets_of(names: Sequence[str]) -> dict[str, str]:
    """Set -> name of its colour, in the order in which they first appear."""
    return {name: SETS[min(number, len(SETS) - 1)] for number, name in enumerate(dict.fromkeys(names))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """figure: None where there is nothing to draw.   texts: one per dot or bar, shown when the pointer rests on it, in the order of drawing."""

    label: str
    figure: Figure | None = None
    texts: tuple[str, ...] = ()

    def __html__(self) -> str:
        """The HTML that a template inserts for the chart."""
        return _inline(self.figure, self.label, self.texts) if self.figure else "<p>Nothing to draw.</p>"


def histogram(values: Sequence[float], label: str, *, most: float = 1.0, bins: int = 41) -> Chart:
    """Counts of relative errors between -most and +most; errors beyond are counted in the outermost bars, and the label gives their number.

    Args:
        values: relative errors (0.05: 5 %), none of them nan.   label: of the x axis.   bins: odd, so that one bar is centred on 0.
    """
    if not values:
        return Chart(label=label)
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, math.floor((value + most) / (2 * most) * bins)))] += 1
    outside = sum(abs(value) > most for value in values)
    edges = [2 * most * number / bins - most for number in range(bins + 1)]
    bars = [number for number, count in enumerate(counts) if count]
    figure, axes = _axes(440, 220, left=46, bottom=56)
    heights, width = [counts[number] for number in bars], 0.94 * 2 * most / bins
    for bar in axes.bar([edges[number] for number in bars], heights, width, align="edge", color=_COLOURS["set0"]):
        bar.set_gid(_TITLED)
    axes.axvline(0, color=_COLOURS["red"], linewidth=1, linestyle="--")
    axes.set_xlim(-most, most)
    axes.set_xticks(*_percents(most))
    axes.set_yticks([0, max(counts)])
    axes.spines[["top", "left", "right"]].set_visible(False)
    number = f"n = {len(values)}" + (f", {outside} beyond the scale, in the outermost bars" if outside else "")
    axes.set_xlabel(f"{label}\n{number}")
    texts = [f"{counts[n]} between {_percent(edges[n])} and {_percent(edges[n + 1])}" for n in bars]
    return Chart(label=f"{label}; {number}", figure=figure, texts=tuple(texts))


def parity(points: Sequence[Point], label_x: str, label_y: str, *, band: float = 0.0, sets: Sequence[str] | None = None) -> Chart:
    """Predicted against measured on equal logarithmic axes, one dot per point with both above 0; the line is equality.

    Args:
        band: half the width of a band around equality, a relative error (0.05: y is within 5 % of x); 0: none.
        sets: a name per point; each set has a colour (sets_of).
    """
    label = f"{label_y} against {label_x}"
    shown = [(point, name) for point, name in zip(points, sets or [""] * len(points), strict=True) if point[0] > 0 and point[1] > 0]
    if not shown:
        return Chart(label=label)
    ends = [value for (x, y, _), _ in shown for value in (x, y)]
    low, high = min(ends) / _MARGIN, max(ends) * _MARGIN
    figure, axes = _axes(360, 320, left=66, bottom=44)
    axes.fill_between([low, high], [low * (1 - band), high * (1 - band)], [low * (1 + band), high * (1 + band)], **_BAND)
    axes.plot([low, high], [low, high], color=_COLOURS["red"], linewidth=1, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=label_x, ylabel=label_y)
    ticks = _decades(low, high)
    axes.set_xticks(*ticks)
    axes.set_yticks(*ticks)
    texts = [f"{name}: {label_x} {x:.4g}, {label_y} {y:.4g}" for x, y, name in _dots(axes, shown)]
    return Chart(label=label, figure=figure, texts=tuple(texts))


def residuals(points: Sequence[Point], label_x: str, label_y: str, *, band: float = 0.0, sets: Sequence[str] | None = None) -> Chart:
    """Relative errors y over x, which is logarithmic and above 0; a line at 0, and a band around it.

    Args:
        band, sets: as in parity.
    """
    label = f"{label_y} over {label_x}"
    shown = [(point, name) for point, name in zip(points, sets or [""] * len(points), strict=True) if point[0] > 0]
    if not shown:
        return Chart(label=label)
    low, high = min(x for (x, _, _), _ in shown) / _MARGIN, max(x for (x, _, _), _ in shown) * _MARGIN
    most = 1.08 * max(band, 0.01, *(abs(y) for (_, y, _), _ in shown))
    figure, axes = _axes(360, 320, left=66, bottom=44)
    axes.axhspan(-band, band, **_BAND)
    axes.axhline(0, color=_COLOURS["red"], linewidth=1, linestyle="--")
    axes.set(xscale="log", xlim=(low, high), ylim=(-most, most), xlabel=label_x, ylabel=label_y)
    axes.set_xticks(*_decades(low, high))
    axes.set_yticks(*_percents(most))
    texts = [f"{name}: {label_x} {x:.4g}, {label_y} {y:+.1%}" for x, y, name in _dots(axes, shown)]
    return Chart(label=label, figure=figure, texts=tuple(texts))


def _axes(width: int, height: int, *, left: int, bottom: int) -> tuple[Figure, Axes]:
    """One unit of the drawing is one CSS pixel of a page where it is not shrunk."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        axes = figure.add_axes((left / width, bottom / height, (width - left - 30) / width, (height - bottom - 12) / height))
        axes.tick_params(length=0, pad=6, which="both")
        return figure, axes


def _dots(axes: Axes, shown: Sequence[tuple[Point, str]]) -> list[Point]:
    """Draw the points of each set in its colour, over everything else; returns them in the order in which they are drawn."""
    axes.minorticks_off()
    drawn: list[Point] = []
    for name, colour in sets_of([name for _, name in shown]).items():
        points = [point for point, other in shown if other == name]
        drawn += points
        (line,) = axes.plot(
            *zip(*((x, y) for x, y, _ in points), strict=True), "o", color=_COLOURS[colour], markersize=6, markeredgewidth=0
        )
        line.set(gid=_TITLED, alpha=0.75, clip_on=False, zorder=3)
    return drawn


def _decades(low: float, high: float) -> tuple[list[float], list[str]]:
    """Ticks at 1, 2 and 5 times powers of ten, or at the two ends if there is none; a tick too close to the one before is left out."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [m * 10.0**power for power in powers for m in (1, 2, 5) if low <= m * 10.0**power <= high]
    spaced: list[float] = []
    for value in values or [low, high]:
        if not spaced or math.log(value / spaced[-1]) >= math.log(high / low) / 6:
            spaced.append(value)
    return spaced, [_short(value) for value in spaced]


def _percents(most: float) -> tuple[list[float], list[str]]:
    values = [-most, -most / 2, 0.0, most / 2, most]
    return values, [_percent(value) for value in values]


def _short(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"


def _percent(x: float) -> str:
    return f"{100 * x:+.0f} %" if x else "0"


def _inline(figure: Figure, label: str, texts: Sequence[str]) -> str:
    """The figure as SVG for the inside of a page."""
    file = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    ElementTree.register_namespace("", _SVG[1:-1])
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(file.getvalue())
    for shape, text in zip(_marked_shapes(root), texts, strict=True):
        ElementTree.SubElement(shape, f"{_SVG}title").text = text
    used = set(re.findall(r"#(\w+)", file.getvalue()))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)  # several drawings of a page would have the same id
    for part in [part for part in root if part.tag == f"{_SVG}metadata" or part.find(f"{_SVG}style") is not None]:
        root.remove(part)  # a style sheet in a drawing would apply to the whole page
    width = float(root.attrib.pop("width").removesuffix("pt"))
    del root.attrib["height"]
    root.attrib |= {"class": "chart", "role": "img", "aria-label": label, "style": f"max-width:{1.2 * width:.0f}px"}
    drawn = shortened_svg(ElementTree.tostring(root, encoding="unicode"))
    for name, colour in _COLOURS.items():
        drawn = drawn.replace(colour, f"var(--{name})")
    return f'<div class="drawing">{re.sub(r" font-family: [^;]*;", "", drawn)}</div>'


def _marked_shapes(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """The marked shapes: the bars, or the places of the dots."""
    for group in root.iter(f"{_SVG}g"):
        if group.get("id") == _TITLED:
            yield from list(group.iter(f"{_SVG}use")) or list(group.iter(f"{_SVG}path"))
