"""The index of all experiments: one card per record of claims.toml, with its pictures inside the page, and links to the pages of its rows.

A picture stands on the index once, small: on the first card that names it; later cards point to it.  It leads to the page that holds it whole,
and where there is none it is whole here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from planner.ir.text import save_text
from regista.report.claims import Claim
from regista.report.html import document
from regista.report.pictures import data_uri, small_data_uri

__all__ = ["save_index"]

_CODE = re.compile(r"`([^`]*)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def save_index(
    claims: Sequence[Claim],
    pages: Mapping[Path, str],
    others: Mapping[str, str],
    path: str | Path,
    title: str,
    *,
    homes: Mapping[Path, str] | None = None,
) -> None:
    """Write the index.

    Args:
        pages: CSV -> file name of its page beside the index.   others: title -> file name of further pages (comparisons of traces).
        homes: picture -> file name of the page beside the index that holds it whole.

    Raises:
        InvalidFile: a picture cannot be read, or path cannot be written.
    """
    sections = dict.fromkeys(claim.section for claim in claims)
    said = f"One card per figure or claim: {len(claims)} in all. Every number behind them says whether it is sim, run, theory or paper."
    body = f'<h1>{escape(title)}</h1><p class="soft">{said}</p>'
    body += _list("Comparisons of a simulated and a measured trace", others)
    first: dict[Path, str] = {}
    for section in sections:
        cards = "".join(_card(claim, pages, homes or {}, first) for claim in claims if claim.section == section)
        body += (f"<h2>{escape(section)}</h2>" if section and section != title else "") + f'<div class="cards">{cards}</div>'
    known = {table.resolve() for claim in claims for table in claim.tables}
    body += _list("Tables", {table.stem: page for table, page in pages.items() if table.resolve() not in known})
    save_text(path, document(title, body))


def _list(what: str, pages: Mapping[str, str]) -> str:
    if not pages:
        return ""
    items = "".join(f'<li><a href="{escape(page)}">{escape(name)}</a></li>' for name, page in sorted(pages.items()))
    return f"<h2>{escape(what)}</h2><ul>{items}</ul>"


def _card(claim: Claim, pages: Mapping[Path, str], homes: Mapping[Path, str], first: dict[Path, str]) -> str:
    """first: picture -> its place on this page; grows."""
    pictures, above = "", []
    for picture in claim.pictures:
        if picture in first:
            above.append(f'<a href="#{first[picture]}">{escape(picture.name)}</a>')
            continue
        first[picture] = f"picture-{len(first)}"
        source = small_data_uri(picture) if picture in homes else data_uri(picture)
        image = f'<img id="{first[picture]}" alt="{escape(_plain(claim.what))}" src="{source}">'
        pictures += f'<a href="{escape(homes[picture])}">{image}</a>' if picture in homes else image
    by_path = {table.resolve(): page for table, page in pages.items()}
    links = ", ".join(f'<a href="{escape(by_path[t.resolve()])}">{escape(t.stem)}</a>' for t in claim.tables if t.resolve() in by_path)
    shown = [(name, text) for name, text in claim.fields.items() if text not in ("", "-", claim.what)]
    lines = "".join(f'<p><span class="soft">{_inline(name)}:</span> {_inline(text)}</p>' for name, text in shown)
    rows = f'<p><span class="soft">rows:</span> {links}</p>' if links else ""
    seen = f'<p><span class="soft">picture, on a card above:</span> {", ".join(above)}</p>' if above else ""
    return f'<article class="card">{pictures}<h3>{_inline(claim.what)}</h3>{lines}{rows}{seen}</article>'


def _inline(markdown: str) -> str:
    """Code, bold and links of one Markdown cell; a link keeps its words only, for its target lies beside claims.toml, not beside the page."""
    parts = _CODE.split(markdown)
    plain = [_BOLD.sub(r"<b>\1</b>", _LINK.sub(r"\1", escape(part))) for part in parts[::2]]
    codes = [f"<code>{escape(part)}</code>" for part in parts[1::2]]
    return "".join(text for pair in zip(plain, [*codes, ""], strict=False) for text in pair)


def _plain(markdown: str) -> str:
    return _LINK.sub(r"\1", markdown).replace("`", "").replace("**", "")
