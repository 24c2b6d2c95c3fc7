"""Small charts as SVG inside the page: they scale with it, take its colours (light and dark) and need no script.

Classes: ``bar``, ``point``, ``axis``, ``zero``, ``text``; the style sheet of regista.report.html gives them colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = ["histogram", "parity"]

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 30, 12, 40


def histogram(values: Sequence[float], label: str, *, most: float = 1.0, bins: int = 41) -> str:
    """Counts of relative errors between -most and +most; what lies outside is counted in the outermost bars, and the text says how many.

    Args:
        values: relative errors (0.05: 5 %), none of them nan.   label: of the x axis.   bins: odd, so that one bar is centred on 0.
    """
    if not values:
        return "<p>Nothing to count.</p>"
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, math.floor((value + most) / (2 * most) * bins)))] += 1
    outside, highest = sum(abs(value) > most for value in values), max(counts)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    bars = "".join(
        f'<rect class="bar" x="{LEFT + wide * i / bins + 0.5:.1f}" y="{TOP + high * (1 - n / highest):.1f}" width="{wide / bins - 1:.1f}" '
        f'height="{high * n / highest:.1f}"><title>{n} between {_percent(2 * most * i / bins - most)} and '
        f"{_percent(2 * most * (i + 1) / bins - most)}</title></rect>"
        for i, n in enumerate(counts)
        if n
    )
    ticks = "".join(
        _text(LEFT + wide * (x + most) / (2 * most), HEIGHT - BOTTOM + 16, _percent(x)) for x in (-most, -most / 2, 0, most / 2, most)
    )
    zero = LEFT + wide / 2
    said = f"{label}; n = {len(values)}" + (f", {outside} beyond the scale" if outside else "")
    axes = (
        f'<line class="axis" x1="{LEFT}" x2="{LEFT + wide}" y1="{TOP + high}" y2="{TOP + high}"/>'
        f'<line class="zero" x1="{zero}" x2="{zero}" y1="{TOP}" y2="{TOP + high}"/>'
    )
    counted = _text(LEFT - 6, TOP + 8, str(highest), "end") + _text(LEFT - 6, TOP + high, "0", "end")
    return _svg(said, axes + bars + ticks + counted + _text(LEFT + wide / 2, HEIGHT - 6, said))


def parity(pairs: Sequence[tuple[float, float, str]], label_x: str, label_y: str) -> str:
    """Predicted against measured on equal logarithmic axes, one dot per pair (x, y, name) with both above 0; the line is equality."""
    shown = [(x, y, name) for x, y, name in pairs if x > 0 and y > 0]
    if not shown:
        return "<p>Nothing to draw.</p>"
    size = 360
    low = math.log10(min(min(x, y) for x, y, _ in shown)) - 0.05
    high = math.log10(max(max(x, y) for x, y, _ in shown)) + 0.05
    span, inner = high - low, size - LEFT - RIGHT - 20

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + 20 + inner * (math.log10(x) - low) / span, TOP + inner * (1 - (math.log10(y) - low) / span)

    dots = ""
    for x, y, name in shown:
        across, down = at(x, y)
        told = escape(f"{name}: {label_x} {x:.4g}, {label_y} {y:.4g}")
        dots += f'<circle class="point" r="3" cx="{across:.1f}" cy="{down:.1f}"><title>{told}</title></circle>'
    left, bottom = LEFT + 20, TOP + inner
    ticks = "".join(
        _text(at(v, v)[0], bottom + 16, _short(v)) + _text(left - 6, at(v, v)[1] + 4, _short(v), "end") for v in _decades(low, high)
    )
    frame = (
        f'<rect class="axis" fill="none" x="{left}" y="{TOP}" width="{inner}" height="{inner}"/>'
        f'<line class="zero" x1="{left}" y1="{bottom}" x2="{left + inner}" y2="{TOP}"/>'
    )
    names = _text(left + inner / 2, size - 20, label_x) + f'<text class="text" transform="translate(12 {TOP + inner / 2}) rotate(-90)" '
    return _svg(
        f"{label_y} against {label_x}", frame + dots + ticks + names + f'text-anchor="middle">{escape(label_y)}</text>', size, size - 8
    )


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between 10^low and 10^high; the ends themselves where there is none."""
    found = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5) if low <= math.log10(m * 10.0**e) <= high]
    kept: list[float] = []
    for value in found or [10**low, 10**high]:
        if not kept or math.log10(value / kept[-1]) >= (high - low) / 6:  # closer labels would run into each other
            kept.append(value)
    return kept


def _short(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"


def _percent(x: float) -> str:
    return f"{100 * x:+.0f} %" if x else "0"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="text" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, body: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    size = (
        f'viewBox="0 0 {width} {height}" style="max-width:{width}px;min-width:{min(width, 420)}px"'  # below that, text is too small to read
    )
    return f'<div class="wide" tabindex="0"><svg class="chart" {size} role="img" aria-label="{escape(title)}">{body}</svg></div>'
