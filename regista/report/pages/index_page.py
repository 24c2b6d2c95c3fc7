"""The index of all experiments: one card per record of claims.toml, with its pictures inside the page, and links to the pages of its rows.

A picture stands on the index once, small: on the first card that names it; later cards point to it.  It leads to the page that holds it whole,
and where there is none it is whole here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from planner.ir.text import save_text
from regista.report.claims import Claim
from regista.report.html import render
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
    trust: Mapping[str, str] | None = None,
) -> None:
    """Write the index.

    Args:
        pages: CSV -> file name of its page beside the index.   others: title -> file name of further pages (comparisons of traces).
        homes: picture -> file name of the page beside the index that holds it whole.
        trust: title -> file name of the page that says how far off predictions are, which the index names first.

    Raises:
        InvalidFile: a picture cannot be read, or path cannot be written.
    """
    first: dict[Path, str] = {}
    sections: dict[str, list[dict[str, object]]] = {}
    for claim in claims:
        sections.setdefault(claim.section, []).append(_card(claim, pages, homes or {}, first))
    claimed = {table.resolve() for claim in claims for table in claim.tables}
    tables = {table.stem: page for table, page in pages.items() if table.resolve() not in claimed}
    values = {"count": len(claims), "comparisons": others, "sections": sections, "tables": tables}
    save_text(path, render("index.html", title=title, trust=dict(trust or {}), **values))


def _card(claim: Claim, pages: Mapping[Path, str], homes: Mapping[Path, str], first: dict[Path, str]) -> dict[str, object]:
    """The values of one claim for the template of its card.   first: picture -> the card that shows it first; this card's pictures are added."""
    pictures, above = [], []
    for picture in claim.pictures:
        if picture in first:
            above.append((picture.name, first[picture]))
            continue
        first[picture] = f"picture-{len(first)}"
        data = small_data_uri(picture) if picture in homes else data_uri(picture)
        pictures.append({"id": first[picture], "page": homes.get(picture), "data": data})
    by_path = {table.resolve(): page for table, page in pages.items()}
    return {
        "what": _inline(claim.what),
        "plain": _LINK.sub(r"\1", claim.what).replace("`", "").replace("**", ""),
        "fields": [(_inline(name), _inline(text)) for name, text in claim.fields.items() if text not in ("", "-", claim.what)],
        "rows": [(table.stem, by_path[table.resolve()]) for table in claim.tables if table.resolve() in by_path],
        "pictures": pictures,
        "above": above,
    }


def _inline(markdown: str) -> Markup:
    """Code, bold and links of one Markdown cell; a link keeps its words only, for its target lies beside claims.toml, not beside the page."""
    parts = _CODE.split(markdown)
    plain = [_BOLD.sub(r"<b>\1</b>", _LINK.sub(r"\1", escape(part))) for part in parts[::2]]
    codes = [f"<code>{escape(part)}</code>" for part in parts[1::2]]
    return Markup("".join(text for pair in zip(plain, [*codes, ""], strict=False) for text in pair))
