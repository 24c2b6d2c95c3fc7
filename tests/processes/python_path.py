"""Where a Python that a test starts finds the code and the tests' own modules (pytest's own ``pythonpath`` stands in pyproject.toml)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PYTHON_PATH"]

_ROOT = Path(__file__).parents[2]
PYTHON_PATH = os.pathsep.join(map(str, (_ROOT, *(_ROOT / "tests" / room for room in ("cases", "conformance", "oracles", "processes")))))
