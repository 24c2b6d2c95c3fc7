"""The trusted base: the files that must be right so that a Plan which is accepted computes its program; all else may be wrong.

    python -m tests.structure.trusted_base         files and lines

They are what planner.validate imports, wherever in a file the import stands; ``planner.search``, ``planner.lower`` and the solvers are none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["BEGINS", "lines_by_room", "trusted_files"]

BEGINS = "planner.validate"


def trusted_files(root: Path, begins: str = BEGINS) -> tuple[Path, ...]:
    """The product's files that a room needs, itself included, relative to ``root``."""
    folder = root / Path(*begins.split("."))
    waiting, seen = sorted(folder.rglob("*.py")), set[Path]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported(root, path)
    return tuple(sorted(path.relative_to(root) for path in seen if path.name != "__init__.py" or _lines(path) > 20))


def lines_by_room(root: Path) -> dict[str, int]:
    """Room -> lines of its trusted files."""
    rooms: dict[str, int] = {}
    for path in trusted_files(root):
        room = "/".join(path.parts[:2])
        rooms[room] = rooms.get(room, 0) + _lines(root / path)
    return rooms


def _imported(root: Path, path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            place = root / Path(*name.split("."))
            yield from (found for found in (place.with_suffix(".py"), place / "__init__.py") if found.is_file())


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[2]
    for file in trusted_files(here):
        print(f"{_lines(here / file):5} {file}")
    print(*(f"{count:5} {room}" for room, count in lines_by_room(here).items()), sep="\n")
