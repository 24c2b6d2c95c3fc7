"""Code in a Python of its own, for what imports load and what must not depend on the process."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["run_python"]


def run_python(code: str) -> str:
    """The output of a fresh interpreter with another hash seed."""
    path = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"],
        env={"PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()
