"""Figures of a checkout's Python files: how they lie in folders, how long they are, and which pairs share lines.

Code written twice: a window of six lines that stands at two places, comments, docstrings, imports and lines without a letter left out.  Two windows
are *equal* if their lines are, and *alike* if they are after every name becomes N, every number 0 and every text S (keywords stay).
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["PRODUCT", "TOPS", "Shape", "files_of", "pairs", "shape"]

PRODUCT = ("planner", "zoo", "simulator", "backend", "regista")
TOPS = (*PRODUCT, "examples", "experiments", "paper", "tests")
WINDOW_LINES = 6
_FEWEST_LETTERS, _FEWEST_TOKENS = 60, 60
"""Windows with less in all are brackets and keywords, not an idea."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """lines: of all files.   crowded: folder -> files beside ``__init__``, where more than 12.   long: file -> lines, where more than 400."""

    files: int
    lines: int
    median_lines: float
    crowded: Mapping[str, int]
    long: Mapping[str, int]


def files_of(root: Path, tops: Sequence[str]) -> tuple[Path, ...]:
    """Python files below root/top, in order, relative to root."""
    return tuple(sorted(path.relative_to(root) for top in tops for path in (root / top).rglob("*.py")))


def shape(root: Path, tops: Sequence[str]) -> Shape:
    """The shape of some top-level folders together.  Median and folders leave ``__init__`` files out."""
    lines = {path: (root / path).read_text(encoding="utf-8").count("\n") for path in files_of(root, tops)}
    rooms: dict[str, int] = defaultdict(int)
    for path in lines:
        rooms[str(path.parent)] += path.name != "__init__.py"
    sizes = [count for path, count in lines.items() if path.name != "__init__.py"]
    return Shape(
        files=len(lines),
        lines=sum(lines.values()),
        median_lines=median(sizes) if sizes else 0,
        crowded={room: count for room, count in sorted(rooms.items()) if count > 12},
        long={str(path): count for path, count in lines.items() if count > 400},
    )


def pairs(root: Path, tops: Sequence[str], *, alike: bool = False) -> dict[tuple[str, str], int]:
    """Pairs of files (or one file with itself) that share windows -> how many lines they share.  alike: by shape instead of by letter."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path in files_of(root, tops):
        rows = list(_rows((root / path).read_text(encoding="utf-8"), alike))
        for start in range(len(rows) - WINDOW_LINES + 1):
            window = tuple(text for _, text in rows[start : start + WINDOW_LINES])
            if (sum(map(len, map(str.split, window))) >= _FEWEST_TOKENS) if alike else (sum(map(_letters, window)) >= _FEWEST_LETTERS):
                places[window].append((str(path), rows[start][0]))
    shared: dict[tuple[str, str], set[int]] = defaultdict(set)
    for where in places.values():
        for index, (first, line) in enumerate(where):
            for second, other in where[index + 1 :]:
                if first != second or abs(other - line) >= WINDOW_LINES:
                    shared[first, second] |= set(range(line, line + WINDOW_LINES))
    return {pair: len(lines) for pair, lines in sorted(shared.items())}


def _letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


def _rows(source: str, alike: bool) -> Iterator[tuple[int, str]]:
    """(line number, text) of the lines that count."""
    left_out = _left_out(source)
    if not alike:
        for number, line in enumerate(source.split("\n"), 1):
            if number not in left_out and _letters(line):
                yield number, line.strip().partition("  #")[0]
        return
    shapes: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.start[0] in left_out or token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            continue
        match token.type:
            case tokenize.NAME:
                text = token.string if keyword.iskeyword(token.string) else "N"
            case tokenize.NUMBER:
                text = "0"
            case tokenize.STRING:
                text = "S"
            case _:
                text = token.string
        shapes[token.start[0]].append(text)
    for number, texts in sorted(shapes.items()):
        if _letters(line := " ".join(texts)):
            yield number, line


def _left_out(source: str) -> set[int]:
    """Lines of imports, docstrings and ``__all__``, and whole-line comments."""
    numbers = {number for number, line in enumerate(source.split("\n"), 1) if line.strip().startswith("#")}
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        is_door = isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text or is_door:
            numbers |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return numbers
