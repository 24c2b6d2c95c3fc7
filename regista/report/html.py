"""The pages' common parts: the style sheet, tables, cards.  No page names another host; light and dark follow the reader's system."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["STYLE", "TEMPLATE", "bytes_cell", "document", "error_cell", "share_cell", "table"]

STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#222222, #DDDDDD); --soft: light-dark(#555555, #A8A8A8);
  --line: light-dark(#E0E0E0, #3A3D42); --back: light-dark(#FFFFFF, #16181B); --card: light-dark(#F7F7F8, #1F2226);
  --blue: light-dark(#0072B2, #56B4E9); --red: light-dark(#B03A00, #F08A50); }
* { box-sizing: border-box; }
body { margin: 1rem auto; padding: 0 1rem; max-width: 1500px; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  overflow-wrap: break-word; }
h1 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { margin: 0 0 .7rem; max-width: 75rem; } .soft, caption, figcaption { color: var(--soft); } a { color: var(--blue); }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 0 0 1rem; } .wide:focus-visible { outline: 2px solid var(--blue); }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .25rem; }
caption span { display: block; position: sticky; left: 0; width: fit-content; max-width: min(75rem, 100vw - 3.5rem); }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .words { text-align: left; } td.words { white-space: normal; min-width: 12rem; }
@media (max-width: 600px) { td.words { min-width: 8rem; } }
thead th { font-weight: 600; vertical-align: bottom; } .bad { color: var(--red); }
.chart { width: 100%; height: auto; display: block; } .bar, .point { fill: var(--blue); } .point { fill-opacity: .75; }
.dot { width: .6em; height: .6em; margin: 0 .3em 0 0; } p > span:has(> .dot) { margin-right: 1.2em; white-space: nowrap; }
.band { fill: var(--soft); fill-opacity: .18; }
.set1 { fill: var(--red); } .set2 { fill: light-dark(#007A5A, #3FC79A); } .set3 { fill: light-dark(#A3447F, #E09CC4); }
.set4 { fill: light-dark(#8A6A00, #E6B800); } .set5 { fill: light-dark(#4B4B4B, #C8C8C8); }
.axis { stroke: var(--soft); stroke-width: 1; } .zero { stroke: var(--red); stroke-width: 1; stroke-dasharray: 4 3; }
.text { fill: var(--ink); font-size: 12px; }
.figures { min-width: 640px; }
.pair { display: grid; gap: 0 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
figure { margin: 0 0 1rem; } .whole { display: block; max-width: 100%; min-width: 420px; height: auto; background: #FFFFFF; border-radius: 4px; }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; border: 1px solid #8888; vertical-align: -.05em; }
.cards { columns: 340px; column-gap: 1rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .9rem; margin: 0 0 1rem;
  break-inside: avoid; }
.card h3 { font-size: 1rem; margin: 0 0 .5rem; } .card p { font-size: 14px; margin: 0 0 .4rem; }
.card img { width: 100%; height: auto; max-height: 380px; object-fit: contain; background: #FFFFFF;
  border-radius: 4px; display: block; margin: 0 0 .6rem; }
.tiles { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); margin: .8rem 0 1rem; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600; } .tile > span { color: var(--soft); font-size: 13px; }
"""

TEMPLATE = (
    """
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1">
{% endblock %}
{% block postamble %}
<style>"""
    + STYLE
    + """</style>
{% endblock %}
{% block contents %}
{{ head }}
<div class="wide" tabindex="0"><div class="figures">
{{ super() }}
</div></div>
{{ tail }}
{% endblock %}
"""
)
"""For bokeh.embed.file_html: ``head`` and ``tail`` are HTML around the figures."""


def document(title: str, body: str) -> str:
    """A whole page without scripts."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = ()) -> str:
    """A table that scrolls by itself where the page is narrow.  Cells are HTML already; captions and headings are text.

    Args:
        words: numbers of the columns that hold sentences and may break.
    """
    heads = "".join(
        f'<th scope="col" class="words">{escape(name)}</th>' if i in words else f'<th scope="col">{escape(name)}</th>'
        for i, name in enumerate(head)
    )
    body = "".join(
        "<tr>" + "".join(f'<td class="words">{cell}</td>' if i in words else f"<td>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    inside = f"<caption><span>{escape(caption)}</span></caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table>{inside}</table></div>'


def error_cell(error: float | None, bad: float = 0.1) -> str:
    """A relative error; ``bad`` and more is marked, and '-' stands where nothing was measured."""
    if error is None:
        return "-"
    return f'<span class="bad">{error:+.1%}</span>' if abs(error) >= bad else f"{error:+.1%}"


def bytes_cell(predicted: float, counted: float) -> str:
    """Predicted less counted bytes: '0 B' where they agree, else marked, as a relative error, or in bytes where that rounds to 0."""
    difference = predicted - counted
    if not difference:
        return "0 B"
    share = difference / counted if counted else 1.0
    shown = f"{share:+.1%}" if abs(share) >= 0.0005 and counted else f"{difference:+,.0f} B"
    return f'<span class="bad">{shown}</span>'


def share_cell(difference: float) -> str:
    """A difference of two shares, in points."""
    return f"{100 * difference:+.1f} points"
