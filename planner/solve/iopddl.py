"""Files of Google's sharding-choice contest: one JSON object, perhaps gzipped, into a Problem; a choice back into a small JSON file.

    {"problem": {"name": ...,
                 "nodes": {"intervals": [[start, stop), ...], "costs": [[...], ...], "usages": [[...], ...]},
                 "edges": {"nodes": [[u, v], ...], "costs": [[row-major matrix], ...]},
                 "usage_limit": ...}}

A node holds usages[v][s] at every time of its half-open interval.  Costs of 10^18 and more mean "forbidden".   [google/iopddl, 2025]
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from planner.ir.errors import InvalidFile
from planner.ir.text import save_text
from planner.solve.problem import Demand, Edge, Floats, Ints, Problem

__all__ = ["FORBIDDEN", "load_iopddl", "save_choice"]

_T = TypeVar("_T")
FORBIDDEN = 10**18  # the contest's infinity
_EXACT = 2**53  # whole numbers above it are not held exactly by a float


def load_iopddl(path: str | Path) -> Problem:
    """Read one instance; the file may be plain or gzipped, whatever its name says.

    Raises:
        InvalidFile: missing, truncated, not JSON, or not a well-formed instance; the message names the node or edge.
    """
    return _problem(_parsed(str(path)), str(path))


def save_choice(path: str | Path, choice: Sequence[int] | Ints) -> None:
    """Write the strategy of every node, in the order of the nodes, as a JSON list; whole or not at all.

    Raises:
        InvalidFile: the folder does not exist or cannot be written.
    """
    save_text(path, json.dumps([int(s) for s in choice]) + "\n")


def _parsed(path: str) -> object:
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        parsed: object = json.loads(data)
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file; give an instance of the contest (*.json or *.json.gz)") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidFile(f"{path}: the gzip data is truncated or damaged ({error}); fetch the file again") from None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror}); give an instance of the contest") from None
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"{path}: not valid JSON ({error}); the file is empty, truncated or damaged, fetch it again") from None
    return parsed


def _problem(data: object, path: str) -> Problem:
    top = _field(data, "problem", dict, path, "the file")
    nodes, edges = _field(top, "nodes", dict, path, "problem"), _field(top, "edges", dict, path, "problem")
    intervals, node_costs, usages = (_field(nodes, name, list, path, "problem.nodes") for name in ("intervals", "costs", "usages"))
    pairs, edge_costs = (_field(edges, name, list, path, "problem.edges") for name in ("nodes", "costs"))
    if not len(intervals) == len(node_costs) == len(usages):
        _fail(path, f"{len(intervals)} intervals, {len(node_costs)} cost lists and {len(usages)} usage lists; one each per node is needed")
    if len(pairs) != len(edge_costs):
        _fail(path, f"{len(pairs)} edges but {len(edge_costs)} edge cost lists; one each is needed")
    costs = [_numbers(row, path, f"costs of node {v}") for v, row in enumerate(node_costs)]
    demands = []
    for v, (interval, row) in enumerate(zip(intervals, usages, strict=True)):
        amount = _numbers(row, path, f"usages of node {v}")
        if not costs[v].size or amount.size != costs[v].size:
            _fail(path, f"node {v} has {costs[v].size} costs and {amount.size} usages; one each per strategy, at least one, is needed")
        if not np.isfinite(amount).all():
            _fail(path, f"node {v} has an infinite usage; forbid the strategy by its cost instead")
        start, stop = _pair(interval, path, f"interval of node {v}")
        if stop > start and amount.any():
            demands.append(Demand(v, start, stop, amount))
    edge_list = []
    for number, (pair, row) in enumerate(zip(pairs, edge_costs, strict=True)):
        u, v = _pair(pair, path, f"nodes of edge {number}")
        if not (0 <= u < len(costs) and 0 <= v < len(costs)):
            _fail(path, f"edge {number} joins nodes {u} and {v}, but nodes are 0 to {len(costs) - 1}")
        matrix = _numbers(row, path, f"costs of edge {number}")
        if matrix.size != costs[u].size * costs[v].size:
            _fail(path, f"edge {number} has {matrix.size} costs; its nodes have {costs[u].size} x {costs[v].size} strategies")
        matrix = matrix.reshape(costs[u].size, costs[v].size)
        if u == v:
            costs[u] = costs[u] + matrix.diagonal()
        else:
            edge_list.append(Edge(u, v, matrix))
    limit = top.get("usage_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0):
        _fail(path, f"usage_limit is {limit!r}; a number of at least 0 is needed")
    names = tuple(f"node {v}" for v in range(len(costs)))
    return Problem(names, tuple(costs), tuple(edge_list), tuple(demands), float("inf") if limit is None else float(limit))


def _fail(path: str, what: str) -> NoReturn:
    raise InvalidFile(f"{path}: not an instance of the contest: {what}")


def _field(data: object, name: str, kind: type[_T], path: str, where: str) -> _T:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        _fail(path, f"{where} has no {'object' if kind is dict else 'list'} named {name!r}")
    return value


def _numbers(row: list[object], path: str, where: str) -> Floats:
    try:
        array = np.array(row)
    except (ValueError, OverflowError):
        _fail(path, f"the {where} are not a list of numbers")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf") or bool in {type(item) for item in row}:
        _fail(path, f"the {where} are not a list of numbers")
    values = array.astype(np.float64)
    if values.size and not values.min() >= 0:  # nan is not
        _fail(path, f"the {where} contain a negative number or nan; the least legal value is 0")
    forbidden = values >= FORBIDDEN
    values[forbidden] = np.inf
    if ((values > _EXACT) & ~forbidden).any():
        _fail(path, f"the {where} contain a number between 2^53 and 10^18, which cannot be added exactly")
    return values


def _pair(data: object, path: str, where: str) -> tuple[int, int]:
    match data:
        case [int(first), int(second)] if bool not in (type(first), type(second)) and max(abs(first), abs(second)) < _EXACT:
            return first, second
    _fail(path, f"the {where} is {str(data)[:60]}, not a pair of whole numbers below 2^53")
