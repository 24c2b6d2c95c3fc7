"""The file of a pipeline schedule: torch's CSV, read at the edge; planner.schedule.torch_csv knows what it means."""

from __future__ import annotations

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_text

__all__ = ["read_schedule"]


def read_schedule(path: str) -> str:
    """The text of a schedule file.

    Raises:
        InvalidFile: it is missing, empty, or no text.
    """
    text = read_text(
        path, "give torch's pipelining CSV, one row per rank; torch's schedule._dump_csv(path, format='compute_only') writes one"
    )
    if not text.strip():
        raise InvalidFile(f"{path}: the file is empty; expected torch's pipelining CSV, one row per rank")
    return text
