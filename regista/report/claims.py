"""The records of a claims.toml: what is claimed, what performs it, and what came out.  The index of a report shows a card per record.

    [[table]]                      a table of records with the same columns
    section = "..."                its heading
    [table.headings]               key of a record -> heading of its column, in the columns' order
    [[table.claim]]                one record; its texts are Markdown, and links lead to files beside claims.toml
    claim = "..."                  what is claimed; every other key is one of the headings'
    manifest = "zero"              what performs it, shown as the column `by`: a manifest in manifests/ (or a list of them),
    module = "quotas"              or a module of the folder
    command = "..."                left out: 'regista sweep' of the first manifest, or 'python -m' of the module

    [paragraph]                    name -> text with figures, for other files to quote

A text may hold figures that are computed from rows:  {zero: peak[mesh == 8] / 1e9 | .2f}  is an expression as in a manifest's relations over
results/zero.csv, and the format of its values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.reading import read_toml
from regista.sweep import Row, check, evaluate, load_manifest, load_rows
from regista.sweep.columns import all_columns
from regista.sweep.keys import known_keys

__all__ = ["Claim", "Claims", "load_claims"]

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FIGURE = re.compile(r"\{(\w+):\s([^{}|]+?)\s*\|\s*([^{}|]+?)\s*\}")
_PICTURE = (".png", ".svg", ".jpg")
_PERFORMER = ("manifest", "module")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One record.   what: the claim, Markdown.   fields: heading -> cell, Markdown, the claim's own included.
    pictures, tables: paths of the files that the record links to.   section: the heading above its table.
    """

    section: str
    what: str
    fields: Mapping[str, str]
    pictures: tuple[Path, ...]
    tables: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """records: in the file's order.   paragraphs: name -> text, its figures computed."""

    records: tuple[Claim, ...]
    paragraphs: Mapping[str, str]


def load_claims(path: str | Path) -> Claims:
    """Read a claims.toml and compute its figures.

    Raises:
        InvalidFile: no such file, no TOML, an unknown key (with the nearest known one), a link to a picture or table that is not there, or a
            figure that cannot be computed.
    """
    file = Path(path)
    try:
        data = read_toml(file, "give a table of claims (TOML)")
        known_keys(data, ("table", "paragraph"), "the file")
        figures = _Figures(file.parent)
        tables = _sections(data.get("table", []), "[[table]]")
        records = [
            _claim(file.parent, table, record, figures)
            for table in tables
            for record in _sections(table.get("claim", []), "[[table.claim]]")
        ]
        paragraphs = {name: figures.filled(text).strip() for name, text in _texts(data.get("paragraph", {}), "[paragraph]").items()}
    except RegistaError as error:
        raise InvalidFile(f"{file}: {error}") from error
    return Claims(records=tuple(records), paragraphs=paragraphs)


def _sections(value: object, where: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(section, Mapping) for section in value):
        raise InvalidFile(f"{where} must be a list of sections")
    return value


def _texts(value: object, where: str) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidFile(f"{where} must be a section of texts")
    return value


def _claim(folder: Path, table: Mapping[str, Any], record: Mapping[str, Any], figures: _Figures) -> Claim:
    known_keys(table, ("section", "headings", "claim"), "[[table]]")
    headings = _texts(table.get("headings", {}), "headings")
    known_keys(record, ("claim", *headings, *_PERFORMER), "[[table.claim]]")
    _texts({key: text for key, text in record.items() if key not in _PERFORMER}, "[[table.claim]]")
    if not all(isinstance(name, str) for key in _PERFORMER for name in _listed(record.get(key, ()))):
        raise InvalidFile(f"[[table.claim]] {', '.join(_PERFORMER)} must be names")
    texts = {key: figures.filled(text) for key, text in (_performer(record) | dict(record)).items() if key not in _PERFORMER}
    if not texts.get("claim") or not texts.get("command"):
        raise InvalidFile(f"the record {dict(record)}: give it a claim, and a manifest, a module or a command")
    files = [folder / target for text in texts.values() for _, target in _LINK.findall(text) if "://" not in target]
    files = [target for target in files if target.suffix in (*_PICTURE, ".csv")]
    if missing := [str(target) for target in files if not target.is_file()]:
        raise InvalidFile(f"{texts['claim']!r} links to {missing[0]}, which is not there; run its command, or mend the link")
    return Claim(
        section=str(table.get("section", "")),
        what=texts["claim"],
        fields={heading: texts.get(key, "") for key, heading in headings.items()},
        pictures=tuple(dict.fromkeys(target for target in files if target.suffix in _PICTURE)),
        tables=tuple(dict.fromkeys(target for target in files if target.suffix == ".csv")),
    )


def _listed(value: object) -> Sequence[Any]:
    """A list as it is, anything else as the only member of one."""
    return value if isinstance(value, list | tuple) else [value]


def _performer(record: Mapping[str, Any]) -> dict[str, str]:
    """The columns `by` and `command` of a record that names a manifest or a module."""
    if "manifest" in record:
        names = _listed(record["manifest"])
        links = ", ".join(f"[{name}](manifests/{name}.toml)" for name in names)
        return {"by": links, "command": f"`regista sweep experiments/manifests/{names[0]}.toml`"}
    if "module" in record:
        return {"by": f"`experiments.{record['module']}`", "command": f"`python -m experiments.{record['module']}`"}
    return {}


class _Figures:
    """Figures that are computed from the rows of results/*.csv beside a claims.toml."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = cache(self._read)

    def filled(self, text: str) -> str:
        """The text with its figures; a figure of several points is their values in the points' order, with commas."""
        return _FIGURE.sub(lambda match: self._figure(match[1], match[2], match[3]), text)

    def _figure(self, name: str, expression: str, form: str) -> str:
        rows, axes, columns = self._table(name)
        values = evaluate(expression, rows, axes, columns)
        try:
            return ", ".join(f"{value:{form}}".replace("%", " %") for value in values)
        except ValueError:
            raise InvalidFile(
                f"the figure {{{name}: {expression} | {form}}} cannot be written as {form!r}; give a format such as .1% or .2f"
            ) from None

    def _read(self, name: str) -> tuple[list[Row], tuple[str, ...], tuple[str, ...]]:
        """Rows, axes and columns: of a sweep as its manifest has them, of any other table with the first column as axis."""
        csv, manifest_file = self._folder / "results" / f"{name}.csv", self._folder / "manifests" / f"{name}.toml"
        if not csv.is_file():
            raise InvalidFile(f"a figure is asked of {csv}, which is not there")
        if manifest_file.is_file():
            manifest = load_manifest(manifest_file)
            return list(check(manifest, csv).rows), manifest.axes, all_columns(manifest.points)
        rows = load_rows(csv)
        columns = tuple(rows[0]) if rows else ()
        return rows, columns[:1], columns
