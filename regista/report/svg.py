"""Small charts as SVG inside the page: they scale with it, take its colours (light and dark) and need no script.

Classes: ``bar``, ``point``, ``set0`` .., ``band``, ``axis``, ``zero``, ``text``; the style sheet of regista.report.html gives them colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

__all__ = ["histogram", "parity", "residuals"]

COLOURS = 6
"""Classes ``set0`` to ``set5``."""

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 30, 12, 56
"""Small, so that text is still read where the page is narrow and the picture shrinks."""


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
    number = f"n = {len(values)}" + (f", {outside} beyond the scale, in the outermost bars" if outside else "")
    axes = (
        f'<line class="axis" x1="{LEFT}" x2="{LEFT + wide}" y1="{TOP + high}" y2="{TOP + high}"/>'
        f'<line class="zero" x1="{zero}" x2="{zero}" y1="{TOP}" y2="{TOP + high}"/>'
    )
    counted = _text(LEFT - 6, TOP + 8, str(highest), "end") + _text(LEFT - 6, TOP + high, "0", "end")
    words = _text(LEFT + wide / 2, HEIGHT - 22, label) + _text(LEFT + wide / 2, HEIGHT - 6, number)
    return _svg(f"{label}; {number}", axes + bars + ticks + counted + words)


def parity(
    pairs: Sequence[tuple[float, float, str]], label_x: str, label_y: str, *, band: float = 0.0, sets: Sequence[str] | None = None
) -> str:
    """Predicted against measured on equal logarithmic axes, one dot per pair (x, y, name) with both above 0; the line is equality.

    Args:
        band: half the width of a band around equality, a relative error (0.05: y is within 5 % of x); 0: none.
        sets: a name per pair; each set has a colour, and more than COLOURS of them share the last one.
    """
    named = [(x, y, name, group) for (x, y, name), group in zip(pairs, sets or [""] * len(pairs), strict=True)]
    shown = [(x, y, name, group) for x, y, name, group in named if x > 0 and y > 0]
    if not shown:
        return "<p>Nothing to draw.</p>"
    size = 360
    low = math.log10(min(min(x, y) for x, y, _, _ in shown)) - 0.05
    high = math.log10(max(max(x, y) for x, y, _, _ in shown)) + 0.05
    span, inner = high - low, size - LEFT - RIGHT - 20

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + 20 + inner * (math.log10(x) - low) / span, TOP + inner * (1 - (math.log10(y) - low) / span)

    groups = _colours(group for _, _, _, group in shown)
    dots = ""
    for x, y, name, group in shown:
        across, down = at(x, y)
        told = escape(f"{name}: {label_x} {x:.4g}, {label_y} {y:.4g}")
        dots += f'<circle class="point set{groups[group]}" r="3" cx="{across:.1f}" cy="{down:.1f}"><title>{told}</title></circle>'
    left, bottom = LEFT + 20, TOP + inner
    dots = _band(band, inner / span, left, inner) + dots
    ticks = "".join(
        _text(at(v, v)[0], bottom + 16, _short(v)) + _text(left - 6, at(v, v)[1] + 4, _short(v), "end") for v in _decades(low, high)
    )
    frame = (
        f'<rect class="axis" fill="none" x="{left}" y="{TOP}" width="{inner}" height="{inner}"/>'
        f'<line class="zero" x1="{left}" y1="{bottom}" x2="{left + inner}" y2="{TOP}"/>'
    )
    names = _text(left + inner / 2, bottom + 34, label_x) + f'<text class="text" transform="translate(12 {TOP + inner / 2}) rotate(-90)" '
    names += f'text-anchor="middle">{escape(label_y)}</text>'
    drawn = _svg(f"{label_y} against {label_x}", frame + dots + ticks + names, size, round(bottom) + 44)
    return drawn + (_key(groups) if len(groups) > 1 else "")


def residuals(
    points: Sequence[tuple[float, float, str]], label_x: str, label_y: str, *, band: float = 0.0, sets: Sequence[str] | None = None
) -> str:
    """Relative errors y over x, which is logarithmic and above 0; a line at 0, and a band around it.

    Args:
        points: (x, y, name).   band, sets: as in parity, whose key tells the colours.
    """
    shown = [(x, y, name, group) for (x, y, name), group in zip(points, sets or [""] * len(points), strict=True) if x > 0]
    if not shown:
        return "<p>Nothing to draw.</p>"
    width, height = 360, 340
    low, high = (math.log10(end(x for x, _, _, _ in shown)) for end in (min, max))
    low, high = low - 0.05, high + 0.05
    most = 1.08 * max(band, *(abs(y) for _, y, _, _ in shown), 0.01)
    left, wide, tall = LEFT + 20, width - LEFT - RIGHT - 20, height - TOP - 44
    middle = TOP + tall / 2

    def down(y: float) -> float:
        return middle - y / most * tall / 2

    groups = _colours(group for _, _, _, group in shown)
    body = f'<rect class="band" x="{left}" y="{down(band):.1f}" width="{wide}" height="{down(-band) - down(band):.1f}"/>' if band else ""
    body += f'<rect class="axis" fill="none" x="{left}" y="{TOP}" width="{wide}" height="{tall}"/>'
    body += f'<line class="zero" x1="{left}" x2="{left + wide}" y1="{middle}" y2="{middle}"/>'
    for x, y, name, group in shown:
        told = escape(f"{name}: {label_x} {x:.4g}, {label_y} {y:+.1%}")
        across = left + wide * (math.log10(x) - low) / (high - low)
        body += f'<circle class="point set{groups[group]}" r="3" cx="{across:.1f}" cy="{down(y):.1f}"><title>{told}</title></circle>'
    for value in _decades(low, high):
        body += _text(left + wide * (math.log10(value) - low) / (high - low), TOP + tall + 16, _short(value))
    for value in (-most, -most / 2, 0.0, most / 2, most):
        body += _text(left - 6, down(value) + 4, _percent(value), "end")
    body += _text(left + wide / 2, TOP + tall + 34, label_x)
    body += f'<text class="text" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{escape(label_y)}</text>'
    return _svg(f"{label_y} over {label_x}", body, width, height)


def _colours(sets: Iterable[str]) -> dict[str, int]:
    """Set -> number of its class, in the order in which they first appear."""
    return {name: min(number, COLOURS - 1) for number, name in enumerate(dict.fromkeys(sets))}


def _band(band: float, per_decade: float, left: float, inner: float) -> str:
    """The strip where |y / x - 1| <= band, cut to the frame by an inner picture."""
    if not band:
        return ""
    above, below = math.log10(1 + band) * per_decade, math.log10(1 - band) * per_decade
    corners = ((0, inner - above), (inner, -above), (inner, -below), (0, inner - below))
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)
    return f'<svg x="{left}" y="{TOP}" width="{inner}" height="{inner}"><polygon class="band" points="{points}"/></svg>'


def _key(groups: Mapping[str, int]) -> str:
    """What the colours mean, beneath the picture; one small dot per set."""
    dot = '<svg class="dot" viewBox="0 0 8 8" aria-hidden="true"><circle class="point set{}" r="4" cx="4" cy="4"/></svg>'
    return '<p class="soft">' + " ".join(f"<span>{dot.format(number)}{escape(name)}</span>" for name, number in groups.items()) + "</p>"


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
    size = f'viewBox="0 0 {width} {height}" style="max-width:{round(1.2 * width)}px"'
    return f'<div class="drawing"><svg class="chart" {size} role="img" aria-label="{escape(title)}">{body}</svg></div>'
