"""A worker that writes down the value of the environment variable PLANTED, and ends."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["main"]


def main(path: str) -> int:
    Path(path, "told").write_text(os.environ.get("PLANTED", "unset"))
    return 0
