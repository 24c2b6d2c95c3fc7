"""Writes what the READMEs say of the experiments from claims.toml, where each claim is one record and figures are computed from the committed rows.

    python -m experiments.claims              exit code 1 if a README says something else
    python -m experiments.claims --write      write it anew

A README holds the places:   <!-- from claims.toml: NAME -->  ...  <!-- end -->     NAME is a section's heading or a paragraph's name.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.text import save_text
from regista.report import Claim, load_claims

__all__ = ["READMES", "generated", "main", "markdown_table", "texts"]

HERE = Path(__file__).parent
READMES = (HERE / "README.md", HERE.parent / "README.md")

_PLACE = re.compile(r"(<!-- from claims\.toml: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def markdown_table(claims: Iterable[Claim]) -> str:
    """A table of claims of one section; a bar inside a cell is escaped."""
    lines: list[str] = []
    for claim in claims:
        if not lines:
            lines = [_line(claim.fields), "|" + "---|" * len(claim.fields)]
        lines.append(_line(claim.fields.values()))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def generated(readme: str, texts: Mapping[str, str]) -> str:
    """The README with every place filled anew.

    Raises:
        InvalidFile: a place of a name that claims.toml does not have.
    """

    def filled(match: re.Match[str]) -> str:
        if match[2] not in texts:
            raise InvalidFile(f"claims.toml has no section or paragraph {match[2]!r} (it has {', '.join(texts)})")
        return f"{match[1]}{texts[match[2]]}\n{match[4]}"

    return _PLACE.sub(filled, readme)


def texts() -> dict[str, str]:
    """Name -> what stands at its place: a table per section, and the paragraphs."""
    claims = load_claims(HERE / "claims.toml")
    sections = dict.fromkeys(record.section for record in claims.records)
    tables = {section: markdown_table(record for record in claims.records if record.section == section) for section in sections}
    return tables | dict(claims.paragraphs)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the READMEs anew")
    args = parser.parse_args(argv)
    try:
        said = texts()
        text_of = {readme: generated(readme.read_text(encoding="utf-8"), said) for readme in READMES}
    except RegistaError as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    other = [readme for readme, text in text_of.items() if readme.read_text(encoding="utf-8") != text]
    for readme in other:
        if args.write:
            save_text(readme, text_of[readme])
        print(f"{'wrote' if args.write else 'says something else than claims.toml and the rows:'} {readme}")
    return int(bool(other) and not args.write)


if __name__ == "__main__":
    sys.exit(main())
