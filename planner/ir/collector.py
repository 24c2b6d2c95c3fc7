"""The garbage collector, paused while a large value is built.

The collector walks all live objects again and again while their number grows.  What the planner builds (graphs, plans) stays alive and
holds no circles, so on a model of 96 layers that walk is about half of the work and frees nothing.  What was made in the pause counts as old
afterwards, so that the first collection does not walk it either (4 % of a search of GPT-3 on 1,024 devices, in a profile).
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
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
            gc.enable()
