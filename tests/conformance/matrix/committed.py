"""The Plans of the matrix's cells, committed beside it, so that a test of a cell begins with its Plan and not with a search.

One file per model, ``plans/<model>.json.xz``: canonical JSON of way and dtype -> Plan, compressed.  The planner makes them;
``make plans`` (pytest's --update-plans) writes them anew after it has changed, and tests/conformance/test_committed_plans.py proves that they
are what it makes.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.plan import Plan
from planner.ir.text import canonical, decode, encode

FOLDER = Path(__file__).parent / "plans"


def read_plan(model: str, way: str, dtype: str) -> Plan:
    """The committed Plan of a cell.

    Raises:
        InvalidFile: the cell has none, or the Plan's schema has changed since; it says how the files are made anew.
    """
    try:
        plan = decode(Plan, _documents(model)[f"{way}.{dtype}"], "plan")
    except (KeyError, OSError, InvalidFile) as error:
        raise InvalidFile(f"no committed plan of {model}, {way}, {dtype} ({error}); write them anew: make plans") from error
    assert isinstance(plan, Plan)
    return plan


def write_plans(model: str, plans: Mapping[tuple[str, str], Plan]) -> None:
    """Write all Plans of a model, by way and dtype."""
    FOLDER.mkdir(exist_ok=True)
    text = canonical({f"{way}.{dtype}": encode(plan) for (way, dtype), plan in plans.items()})
    _file(model).write_bytes(lzma.compress(text.encode(), preset=9))
    _documents.cache_clear()


def _file(model: str) -> Path:
    return FOLDER / f"{model}.json.xz"


@cache
def _documents(model: str) -> Mapping[str, object]:
    documents: Mapping[str, object] = json.loads(lzma.decompress(_file(model).read_bytes()))
    return documents
