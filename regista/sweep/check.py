"""Relations against the rows of a sweep: each is held or broken, with the numbers of the point where it is closest to breaking.

A column of a relation is a pandas Series, indexed by the axes that no == condition fixed, or a single value where one point is left.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from operator import add, ge, gt, le, lt, mul, sub, truediv
from typing import Any, TypeAlias

import pandas as pd

from planner.ir.errors import InvalidFile
from regista.analysis.statistics import quantile, rank_correlation
from regista.sweep.columns import column_of
from regista.sweep.relation import ARITHMETIC, Condition, Relation, conditions_of, parse_expression

__all__ = ["Cell", "Row", "Verdict", "check_relation", "evaluate", "select"]

Cell = float | str | None
Row = Mapping[str, Cell]
Point = tuple[Cell, ...]
_Series: TypeAlias = "pd.Series[Any]"
_Value: TypeAlias = "float | str | _Series | tuple[Point, ...]"
"""A number, a text, one of either per point, or an order of points."""

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul, "/": truediv}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """left, right: the two sides at the point that decides, as text.   where: that point's axes.   says: why it could not be checked."""

    relation: str
    held: bool
    left: str
    right: str
    where: str
    points: int
    says: str = ""


class _Unchecked(Exception):
    """A relation cannot be checked; the text says what is missing."""


def select(rows: Sequence[Row], conditions: Sequence[Condition], columns: Sequence[str]) -> list[Row]:
    """The rows that meet all conditions; an empty cell meets none but '!='."""
    return [row for row in rows if all(_meets(row.get(column_of(c.column, columns)), c) for c in conditions)]


def _meets(cell: Cell, condition: Condition) -> bool:
    if cell in (None, ""):
        return condition.comparison == "!="
    if condition.comparison in ("==", "!="):
        return _same(cell, condition.value) == (condition.comparison == "==")
    if not isinstance(cell, float) or not isinstance(condition.value, float):
        raise _Unchecked(f"{condition}: a text has no size ({cell!r})")
    return _COMPARE[condition.comparison](cell, condition.value)


def _same(left: object, right: object) -> bool:
    """Numbers are compared to nine digits, because a CSV rounds them."""
    return isclose(left, right, rel_tol=1e-9) if isinstance(left, float) and isinstance(right, float) else left == right


def check_relation(relation: Relation, rows: Sequence[Row], axes: Sequence[str], columns: Sequence[str]) -> Verdict:
    """Whether the relation holds; a missing value breaks it.

    Args:
        rows: one per point.   axes: the columns that tell points apart.   columns: of the sweep, for aliases.
    """
    evaluator = _Evaluator(rows, tuple(axes), columns)
    try:
        sides = [evaluator.value(side) for side in relation.sides]
        links = [_compared(left, sign, right) for left, sign, right in zip(sides, relation.comparisons, sides[1:], strict=False)]
    except _Unchecked as error:
        return Verdict(relation=relation.text, held=False, left="", right="", where="", points=len(rows), says=str(error))
    held, _, left, right, where, points = min(links, key=lambda link: link[:2])
    return Verdict(relation=relation.text, held=held, left=left, right=right, where=where, points=points)


def evaluate(expression: str, rows: Sequence[Row], axes: Sequence[str], columns: Sequence[str]) -> list[float]:
    """The numbers of an expression as it stands on a side of a relation: one per point, or a single one.

    Raises:
        InvalidFile: no expression, or a value that it needs is missing.
    """
    try:
        return _numbers(_Evaluator(rows, tuple(axes), columns).value(parse_expression(expression)), "a figure")
    except _Unchecked as error:
        raise InvalidFile(f"expression {expression!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Evaluator:
    """Evaluates one side of a relation; parse_relation has refused every construct that is not handled here."""

    rows: Sequence[Row]
    axes: tuple[str, ...]
    columns: Sequence[str]

    def value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=str() | int() | float() as constant):
                return constant if isinstance(constant, str) else float(constant)
            case ast.Name() | ast.Subscript():
                return self._column(node)
            case ast.UnaryOp(operand=operand):
                return _combined("-", 0.0, self.value(operand))
            case ast.BinOp(left=left, op=sign, right=right):
                return _combined(ARITHMETIC[type(sign)], self.value(left), self.value(right))
            case ast.Call(func=ast.Name(id="count"), args=[column]):
                name, _, chosen = self._selected(column)
                return float(sum(row.get(name) not in (None, "") for row in chosen))
            case ast.Call(func=ast.Name(id=function), args=[argument]):
                return _of_one(function, self.value(argument))
            case ast.Call(func=ast.Name(id=function), args=[first, second]):
                return _of_two(function, self.value(first), self.value(second))
        raise AssertionError(ast.unparse(node))

    def _selected(self, node: ast.expr) -> tuple[str, tuple[Condition, ...], list[Row]]:
        conditions = conditions_of(node)
        name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
        return column_of(name, self.columns), conditions, select(self.rows, conditions, self.columns)

    def _column(self, node: ast.expr) -> _Value:
        name, conditions, chosen = self._selected(node)
        if not chosen:
            raise _Unchecked(f"no point has {', '.join(map(str, conditions)) or 'a row'}")
        cells: list[float | str] = []
        for row in chosen:
            cell = row.get(name)
            if cell is None or cell == "":
                status = f"{row.get('status') or 'not performed'} {row.get('says') or ''}".strip()
                raise _Unchecked(
                    f"{name} is missing at {_where(self.axes, [row.get(axis) for axis in self.axes]) or 'the point'}: {status}"
                )
            cells.append(cell)
        if len(cells) == 1:
            return cells[0]
        fixed = {column_of(c.column, self.columns) for c in conditions if c.comparison == "=="}
        free = [axis for axis in self.axes if axis not in fixed]
        points = [tuple("" if row.get(axis) is None else row.get(axis) for axis in free) for row in chosen]
        if len(set(points)) < len(points):
            raise _Unchecked(f"{ast.unparse(node)}: several points have the same {', '.join(free) or 'conditions'}; add a condition")
        dtype = float if all(isinstance(cell, float) for cell in cells) else object
        return pd.Series(cells, index=pd.MultiIndex.from_tuples(points, names=free), dtype=dtype)


def _numbers(value: _Value, what: str) -> list[float]:
    """The values as a list, a single one too."""
    if isinstance(value, float):
        return [value]
    if isinstance(value, pd.Series) and value.dtype == float:
        return [float(number) for number in value]
    raise _Unchecked(f"{what} needs numbers, not {'an order' if isinstance(value, tuple) else 'texts'}")


def _of_one(function: str, value: _Value) -> _Value:
    values = _numbers(value, function)
    match function:
        case "abs":
            return value.abs() if isinstance(value, pd.Series) else abs(values[0])
        case "order":
            if not isinstance(value, pd.Series):
                raise _Unchecked("order of fewer than two values says nothing; choose more points")
            return tuple(value.sort_values(kind="stable").index)
        case "rising":
            return float(values == sorted(values))
        case "spread":
            if min(values) <= 0:
                raise _Unchecked(f"spread needs values above 0; the least is {min(values):g}")
            return max(values) / min(values)
    return float(pd.Series(values).agg(function))


def _of_two(function: str, first: _Value, second: _Value) -> float:
    if function == "quantile":
        (share,) = _numbers(second, function)[:1]
        if not 0 <= share <= 1:
            raise _Unchecked(f"quantile takes a share between 0 and 1, not {share:g}")
        return quantile(_numbers(first, function), share)
    first, second = _aligned(first, second)
    a, b = _numbers(first, function), _numbers(second, function)
    if function == "where_least":
        return a[b.index(min(b))]
    if len(a) < 3:
        raise _Unchecked(f"a correlation of {len(a)} points says nothing; choose at least 3")
    correlation = rank_correlation(a, b)
    if correlation is None:
        raise _Unchecked("a correlation needs values that differ")
    return correlation


def _aligned(left: _Value, right: _Value) -> tuple[_Value, _Value]:
    """The two values with their points in the same order; a single value stands for every point."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        raise _Unchecked("an order can be compared with an order only, by == or !=")
    if not isinstance(left, pd.Series) or not isinstance(right, pd.Series):
        return left, right
    if left.index.names != right.index.names or set(left.index) != set(right.index):
        apart = [_where(a.index.names, key) for a, b in ((left, right), (right, left)) for key in a.index if key not in b.index]
        raise _Unchecked(
            f"the two sides have {len(left)} and {len(right)} points that do not match ({'; '.join(apart[:3])}); add conditions or axes"
        )
    return left, right.reindex(left.index)


def _combined(sign: str, left: _Value, right: _Value) -> _Value:
    left, right = _aligned(left, right)
    _numbers(left, sign)
    divisors = _numbers(right, sign)
    if sign == "/" and 0.0 in divisors:
        where = _where(right.index.names, right.index[divisors.index(0.0)]) if isinstance(right, pd.Series) else ""
        raise _Unchecked(f"a division by 0 at {where or 'the point'}")
    combined: float | _Series = _JOIN[sign](left, right)
    return combined


def _compared(left: _Value, sign: str, right: _Value) -> tuple[bool, float, str, str, str, int]:
    """(held, slack, left, right, where, points) of the point with the least slack among those that break the relation, or else among all."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        if sign not in ("==", "!="):
            raise _Unchecked(f"an order is compared by == or !=, not by {sign}")
        if set(left) != set(right):
            raise _Unchecked(f"the two orders are of {len(left)} and {len(right)} other points; give both the same conditions")
        texts = [" < ".join("/".join(map(_show, point)) for point in order) for order in (left, right)]
        return (left == right) == (sign == "=="), 0.0, texts[0], texts[1], "", len(left)
    left, right = _aligned(left, right)
    index = next((side.index for side in (left, right) if isinstance(side, pd.Series)), None)
    if index is None:
        return _held(left, sign, right), _slack(left, sign, right), _show(left), _show(right), "", 1
    both = pd.DataFrame({"left": left, "right": right}, index=index)
    return min(
        (
            (_held(a, sign, b), _slack(a, sign, b), _show(a), _show(b), _where(index.names, point), len(index))
            for point, a, b in zip(index, both["left"], both["right"], strict=True)
        ),
        key=lambda link: link[:2],
    )


def _held(left: object, sign: str, right: object) -> bool:
    if sign in ("==", "!="):
        return _same(left, right) == (sign == "==")
    if not isinstance(left, float) or not isinstance(right, float):
        raise _Unchecked(f"{sign} needs numbers, not {left!r} and {right!r}")
    return _COMPARE[sign](left, right)


def _slack(left: object, sign: str, right: object) -> float:
    """The distance of a point from breaking the relation, relative to the larger side; below 0 if it breaks it."""
    if sign in ("==", "!=") or not isinstance(left, float) or not isinstance(right, float):
        return 0.0
    return ((right - left) if sign.startswith("<") else (left - right)) / (max(abs(left), abs(right)) or 1.0)


def _show(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.6g}" if cell.is_integer() or abs(cell) >= 1e5 else f"{cell:.4g}"


def _where(axes: Sequence[object], point: Sequence[object]) -> str:
    return ", ".join(f"{axis}={_show(cell)}" for axis, cell in zip(axes, point, strict=True))
