"""The trusted base: the code that must be right so that a Plan which is accepted computes its program; all else may be wrong.

    python -m tests.structure.trusted_base         files, functions and lines of code

It is what ``planner.validate`` needs (tests.structure.reached), and what it takes for granted of whoever performs a Plan: that an act starts when
its blocks are there, who meets in a collective, what a transfer sends.  ``planner.search``, ``planner.lower`` and the solvers are no part of it;
nor are prices, which the validation never reads, and the texts of refusals.  Lines are counted without docstrings, comments and blank lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.structure.reached import Needed, reached

__all__ = ["BEGINS", "lines_by_room", "trusted_code", "trusted_files"]

BEGINS = (
    "planner.validate.validate.validate",
    "planner.ir.actors.actor.Actor",
    "planner.ir.actors.actor.InPort",
    "planner.ir.actors.actor.OutPort",
    "planner.ir.actors.actor.StreamGate",
    "planner.ir.actors.actor.build_actors",
    "planner.ir.actors.routes.pieces",
    "planner.ir.actors.routes.routes",
    "planner.ir.plan.Plan.peers",
)
PRICES = ("flop", "traffic")
"""What rows of the table of ops say for a price alone."""


def trusted_code(root: Path) -> Mapping[Path, Needed]:
    """What must be right of each file, by its path relative to ``root``."""
    return reached(root, BEGINS, PRICES)


def trusted_files(root: Path) -> tuple[Path, ...]:
    return tuple(path for path, needed in trusted_code(root).items() if needed.lines((root / path).read_text(encoding="utf-8")))


def lines_by_room(root: Path) -> dict[str, int]:
    """Room -> lines of its trusted code."""
    rooms: dict[str, int] = {}
    for path, needed in trusted_code(root).items():
        room = "/".join(path.parts[:2])
        rooms[room] = rooms.get(room, 0) + needed.lines((root / path).read_text(encoding="utf-8"))
    return rooms


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[2]
    for file, of_file in trusted_code(here).items():
        source = (here / file).read_text(encoding="utf-8")
        print(f"{len(of_file.functions):4} functions {of_file.lines(source):5} of {source.count(chr(10)):4} lines  {file}")
    print(*(f"{count:5} lines of code  {room}" for room, count in lines_by_room(here).items()), sep="\n")
    print(f"{sum(lines_by_room(here).values()):5} lines of code  in all")
