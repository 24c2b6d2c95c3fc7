"""The garbage collector, paused while a large value is built.

The collector walks all live objects again and again while their number grows.  What the planner builds (graphs, plans) stays alive and
holds no circles, so on a model of 96 layers that walk is about half of the work and frees nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Reference counting alone frees memory inside; may be nested, and decorates functions too."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
