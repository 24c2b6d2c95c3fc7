"""The file of a pipeline schedule: torch's CSV, read at the edge; planner.schedule.torch_csv knows what it means."""

from __future__ import annotations

from pathlib import Path

from planner.ir.errors import InvalidFile

__all__ = ["read_schedule"]


def read_schedule(path: str) -> str:
    """The text of a schedule file.

    Raises:
        InvalidFile: it is missing, empty, or no text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file; torch's schedule._dump_csv(path, format='compute_only') writes one") from None
    except (OSError, UnicodeError) as error:
        raise InvalidFile(f"{path}: cannot be read as text ({error}); expected torch's pipelining CSV, one row per rank") from None
    if not text.strip():
        raise InvalidFile(f"{path}: the file is empty; expected torch's pipelining CSV, one row per rank")
    return text
