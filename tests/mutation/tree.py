"""A copy of the repository in which faults are planted, so that the working tree is never touched."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

from tests.mutation.faults import Fault, changes_program, faults_of
from tests.structure.trusted_base import trusted_code, trusted_files

__all__ = ["ROOMS", "chosen_faults", "copy_tree", "planted", "restore", "trusted_rooms"]

ROOMS: Mapping[str, tuple[str, ...]] = {
    "planner/solve": ("planner/solve",),
    "planner/lower": ("planner/lower",),
    "simulator/engine": (
        "simulator/engine.py",
        "simulator/game.py",
        "simulator/pacing.py",
        "simulator/rules",
        "planner/ir/actors/game.py",
        "planner/ir/actors/ledger.py",
    ),
    "backend/comm": ("backend/comm",),
}


class Planted(Protocol):
    """A change of a module's text: a Fault, or one that was written down."""

    @property
    def module(self) -> str: ...
    def planted(self, source: str) -> str: ...


def copy_tree(source: Path, tree: Path) -> str:
    """Copy what git tracks; returns the commit."""
    files = subprocess.run(["git", "ls-files"], cwd=source, capture_output=True, text=True, check=True).stdout.splitlines()
    for file in files:
        if (source / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, tree / file)
    described = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(described, cwd=source, capture_output=True, text=True, check=True).stdout.strip()


def trusted_rooms(tree: Path) -> Mapping[str, tuple[str, ...]]:
    """The files that must be right for a Plan that is accepted to compute its program (tests.structure.trusted_base), by room."""
    rooms: dict[str, tuple[str, ...]] = {}
    for path in trusted_files(tree):
        room = "/".join(path.parts[:2])
        rooms[room] = (*rooms.get(room, ()), str(path))
    return rooms


def chosen_faults(
    tree: Path, rooms: Mapping[str, tuple[str, ...]], number: int, seed: int, *, trusted: bool = False
) -> list[tuple[str, Fault]]:
    """(room, fault) at random, equally many from every room and one room after the other, so that each beginning is a fair sample too.

    Args:
        trusted: only faults in the code that tests.structure.trusted_base finds, not in the rest of its files.
    """
    per_room = []
    needed = trusted_code(tree) if trusted else {}
    for room, parts in rooms.items():
        files = sorted(file for part in parts for file in ([tree / part] if part.endswith(".py") else (tree / part).rglob("*.py")))
        sources = {str(file.relative_to(tree)): file.read_text() for file in files}
        faults = [fault for module, source in sources.items() for fault in faults_of(module, source)]
        if trusted:
            faults = [fault for fault in faults if needed[Path(fault.module)].holds(fault.start, fault.end)]
        random.Random(f"{seed} {room}").shuffle(faults)
        sound = (fault for fault in faults if changes_program(fault, sources[fault.module]))
        per_room.append([(room, fault) for fault, _ in zip(sound, range(-(-number // len(rooms))), strict=False)])
    return [pair for turn in zip_longest(*per_room) for pair in turn if pair is not None][:number]


@contextmanager
def planted(tree: Path, fault: Planted) -> Iterator[None]:
    """The tree with the fault in it.  No bytecode of the module stays: that is told by time and size, which a fault may leave equal."""
    path = tree / fault.module
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()
    sound = _sound(path)
    shutil.copyfile(path, sound)
    path.write_text(fault.planted(sound.read_text()))
    try:
        yield
    finally:
        sound.replace(path)


def restore(tree: Path) -> None:
    """Take out the fault that a check left in the tree when it was ended."""
    for sound in tree.rglob(f"*{_SOUND}"):
        sound.replace(sound.with_suffix(""))


_SOUND = ".sound"


def _sound(path: Path) -> Path:
    return path.with_name(path.name + _SOUND)
