"""On how many random examples a property is tried: in make test on a fourth of those of make test-all and of ``pytest PATH``."""

from __future__ import annotations

import pytest
from hypothesis import settings

__all__ = ["choose_tier", "examples"]

_SHARE = 4
_DEFAULT = 100
"""Examples of a property that does not say how many."""

_quick = False


def choose_tier(config: pytest.Config) -> None:
    """To be called before tests are collected: their settings are read then.  No deadline: other programs use the machine too."""
    global _quick
    _quick = "not thorough" in str(config.getoption("markexpr"))
    settings.register_profile("regista", deadline=None, derandomize=True, print_blob=True, max_examples=examples(_DEFAULT))
    settings.load_profile("regista")


def examples(count: int) -> int:
    """For ``settings(max_examples=examples(...))``: ``count``, or a fourth in make test."""
    return count // _SHARE if _quick else count
