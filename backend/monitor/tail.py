"""Files that one process appends lines to while another reads them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["Tail"]


class Tail:
    """The whole lines that a file has gained since it was last read; a file that does not exist yet has gained none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_lines(self) -> str:
        """The lines with their ends."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode()
