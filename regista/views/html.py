"""What all HTML pages share: tables as values, and Jinja2 environments that escape every text that is not markup already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Cell", "Table", "environment"]

Cell = str | Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """words: numbers of the columns that hold sentences and may break."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = ()


def environment(*folders: Path) -> Environment:
    """The templates of the folders, the first that has one; a name that a template reads and nobody gave is an error."""
    return Environment(loader=FileSystemLoader(folders), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
