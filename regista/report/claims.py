"""The table of experiments as its README writes it: one row per claim, with its command, pictures and status.

Tables with a column 'command' that is not their first count.  The claim stands in the column whose heading begins with 'claim' or 'what', or else in
the first.  A command 'the same' is that of the row above, 'as above' that of the last row above with the same manifest or module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.ir.errors import InvalidFile

__all__ = ["Claim", "read_claims"]

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURE = (".png", ".svg", ".jpg")
_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One row.   what: the claim, Markdown.   fields: the other columns by their heading, Markdown.
    pictures, tables: paths beside the README that the row links to.   section: the heading above the table.
    """

    section: str
    what: str
    fields: Mapping[str, str]
    pictures: tuple[Path, ...]
    tables: tuple[Path, ...]


def read_claims(path: str | Path) -> tuple[Claim, ...]:
    """All rows of the README's tables that have a column 'command'.

    Raises:
        InvalidFile: there is no such file or table, a row has another number of cells than its head, or it links to a picture or table
            that is not there.
    """
    readme = Path(path)
    try:
        lines = readme.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{readme}: cannot be read ({error}); the index needs a README.md with a table of experiments") from error
    claims: list[Claim] = []
    section, head, command, of_module = "", None, "", dict[str, str]()
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            section = line.lstrip("# ").strip()
        if not line.lstrip().startswith("|"):
            head = None
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL.split(line.strip().strip("|"))]
        if head is None:
            head = [cell.lower() for cell in cells]
        elif not all(set(cell) <= set("-: ") for cell in cells) and "command" in head[1:]:
            if len(cells) != len(head):
                raise InvalidFile(f"{readme}:{number}: {len(cells)} cells under {len(head)} headings; write a bar inside a cell as \\|")
            place = head.index("command")
            module = next((cell for name, cell in zip(head, cells, strict=True) if "module" in name), "")
            if cells[place] == "the same":
                cells[place] = command
            elif cells[place] == "as above":
                cells[place] = of_module.get(module, cells[place])
            command = of_module[module] = cells[place]
            claims.append(_claim(readme, number, section, head, cells))
    if not claims:
        raise InvalidFile(f"{readme}: no table with a column 'command' after its first; the index shows one card per row of it")
    return tuple(claims)


def _claim(readme: Path, number: int, section: str, head: list[str], cells: list[str]) -> Claim:
    targets = [readme.parent / target for cell in cells for _, target in _LINK.findall(cell) if "://" not in target]
    files = [target for target in targets if target.suffix in (*_PICTURE, ".csv")]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise InvalidFile(f"{readme}:{number}: links to {missing[0]}, which is not there; run the row's command, or mend the link")
    what = next((place for place, name in enumerate(head) if name.startswith(("claim", "what"))), 0)
    return Claim(
        section=section,
        what=cells[what],
        fields={name: cell for place, (name, cell) in enumerate(zip(head, cells, strict=True)) if place != what},
        pictures=tuple(dict.fromkeys(f for f in files if f.suffix in _PICTURE)),
        tables=tuple(dict.fromkeys(f for f in files if f.suffix == ".csv")),
    )
