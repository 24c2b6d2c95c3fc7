"""Relations against rows: held or broken, with the numbers of the point where it is closest to breaking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from operator import eq, ge, gt, le, lt, ne
from statistics import StatisticsError, correlation, mean, median
from typing import assert_never

from regista.sweep.columns import column_of
from regista.sweep.relation import Binary, Call, Column, Condition, Expr, Literal, Relation

__all__ = ["Cell", "Row", "Verdict", "check_relation", "select"]

Cell = float | str | None
Row = Mapping[str, Cell]
Key = tuple[Cell, ...]

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}

_REDUCE: Mapping[str, Callable[[list[float]], float]] = {"max": max, "min": min, "sum": sum, "mean": mean, "median": median}


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


@dataclass(frozen=True, slots=True)
class _Many:
    """Values by point.  axes: the columns that the keys are made of; the keys keep the points' order."""

    axes: tuple[str, ...]
    values: Mapping[Key, Cell]


@dataclass(frozen=True, slots=True)
class _Order:
    keys: tuple[Key, ...]


_Value = float | str | _Many | _Order


class _Unchecked(Exception):
    """What is missing for a verdict."""


def select(rows: Sequence[Row], where: Sequence[Condition], columns: Sequence[str]) -> list[Row]:
    """The rows that meet all conditions; an empty cell meets none but '!='."""
    return [row for row in rows if all(_meets(row.get(column_of(c.column, columns)), c) for c in where)]


def check_relation(relation: Relation, rows: Sequence[Row], axes: Sequence[str], columns: Sequence[str]) -> Verdict:
    """Does it hold?  A value that is missing breaks it; nothing is passed over.

    Args:
        rows: one per point.   axes: the columns that tell points apart.   columns: of the sweep, for aliases.
    """
    try:
        sides = [_value(part, rows, tuple(axes), columns) for part in relation.parts]
        found: list[tuple[bool, float, str, str, str, int]] = []
        for left, sign, right in zip(sides, relation.comparisons, sides[1:], strict=False):
            found.append(_compare(left, sign, right))
    except _Unchecked as error:
        return Verdict(relation=relation.text, held=False, left="", right="", where="", points=len(rows), says=str(error))
    held, _, left_text, right_text, where, points = min(found, key=lambda link: (link[0], link[1]))
    return Verdict(relation=relation.text, held=held, left=left_text, right=right_text, where=where, points=points)


def _meets(cell: Cell, condition: Condition) -> bool:
    if cell is None or cell == "":
        return condition.comparison == "!="
    number = _number(condition.value)
    if isinstance(cell, float) and number is not None:
        if condition.comparison in _COMPARE:
            return _COMPARE[condition.comparison](cell, number)
        return isclose(cell, number, rel_tol=1e-9, abs_tol=0.0) == (condition.comparison == "=")
    text = f"{cell:g}" if isinstance(cell, float) else cell
    if condition.comparison in ("=", "!="):
        return (text == condition.value) == (condition.comparison == "=")
    raise _Unchecked(f"{condition.column} {condition.comparison} {condition.value}: {text!r} is a text, which has no size")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _value(expr: Expr, rows: Sequence[Row], axes: tuple[str, ...], columns: Sequence[str]) -> _Value:
    match expr:
        case Literal(value):
            return value
        case Column():
            return _column(expr, rows, axes, columns)
        case Call("count", Column(name, where)):
            name = column_of(name, columns)
            return float(sum(row.get(name) not in (None, "") for row in select(rows, where, columns)))
        case Call(function, argument, None):
            return _call(function, _value(argument, rows, axes, columns))
        case Call(function, argument, second):
            assert second is not None
            return _paired(function, _value(argument, rows, axes, columns), _value(second, rows, axes, columns))
        case Binary(operator, left, right):
            return _joined(operator, _value(left, rows, axes, columns), _value(right, rows, axes, columns))
        case _:
            assert_never(expr)


def _column(expr: Column, rows: Sequence[Row], axes: tuple[str, ...], columns: Sequence[str]) -> _Many:
    chosen = select(rows, expr.where, columns)
    if not chosen:
        asked = ", ".join(f"{c.column} {c.comparison} {c.value}" for c in expr.where)
        raise _Unchecked(f"no point has {asked or 'a row'}")
    fixed = {column_of(c.column, columns) for c in expr.where if c.comparison == "="}
    left = tuple(axis for axis in axes if axis not in fixed)
    name = column_of(expr.name, columns)
    values: dict[Key, Cell] = {}
    for row in chosen:
        key = tuple(row.get(axis) for axis in left)
        if key in values:
            raise _Unchecked(f"{expr.name}: several points have the same {', '.join(left) or 'conditions'}; add a condition")
        cell = row.get(name)
        if cell is None or cell == "":
            who = ", ".join(f"{axis}={_show(row.get(axis))}" for axis in axes)
            raise _Unchecked(
                f"{expr.name} is missing at {who or 'the point'}: {row.get('status') or 'not performed'} {row.get('says') or ''}".strip()
            )
        values[key] = cell
    return _Many(left, values)


def _numbers(value: _Value, what: str) -> dict[Key, float]:
    if isinstance(value, float):
        return {(): value}
    if isinstance(value, _Many) and all(isinstance(v, float) for v in value.values.values()):
        return {key: v for key, v in value.values.items() if isinstance(v, float)}
    raise _Unchecked(f"{what} needs numbers, not {'an order' if isinstance(value, _Order) else 'texts'}")


def _call(function: str, value: _Value) -> _Value:
    numbers = _numbers(value, function)
    values = list(numbers.values())
    match function:
        case "abs":
            return _Many(value.axes, {k: abs(v) for k, v in numbers.items()}) if isinstance(value, _Many) else abs(values[0])
        case "order":
            if len(values) < 2:
                raise _Unchecked("order of fewer than two values says nothing; choose more points")
            return _Order(tuple(sorted(numbers, key=lambda key: numbers[key])))
        case "rising":
            return float(all(a <= b for a, b in zip(values, values[1:], strict=False)))
        case "spread":
            if min(values) <= 0:
                raise _Unchecked(f"spread needs values above 0; the least is {min(values):g}")
            return max(values) / min(values)
        case "count":
            return float(len(values))
        case "p90":
            return _p90(values)
        case "max" | "min" | "sum" | "mean" | "median":
            return float(_REDUCE[function](values))
    raise AssertionError(function)


def _paired(function: str, first: _Value, second: _Value) -> float:
    _, pairs = _pairs(first, second)
    numbers = [(a, b) for _, a, b in pairs if isinstance(a, float) and isinstance(b, float)]
    if len(numbers) < len(pairs):
        raise _Unchecked(f"{function} needs numbers")
    if function == "where_least":
        return min(numbers, key=lambda pair: pair[1])[0]
    if len(numbers) < 3:
        raise _Unchecked(f"a correlation of {len(numbers)} points says nothing; choose at least 3")
    try:
        return correlation(_ranks([a for a, _ in numbers]), _ranks([b for _, b in numbers]))
    except StatisticsError:
        raise _Unchecked("a correlation needs values that differ") from None


def _ranks(values: list[float]) -> list[float]:
    """Places from the least, equal values share the mean of theirs."""
    return [sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values]


def _p90(values: list[float]) -> float:
    ordered = sorted(values)
    where = 0.9 * (len(ordered) - 1)
    low = int(where)
    return ordered[low] + (where - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def _pairs(left: _Value, right: _Value) -> tuple[tuple[str, ...], list[tuple[Key, Cell, Cell]]]:
    """Point by point; a single value meets all."""
    if isinstance(left, _Order) or isinstance(right, _Order):
        raise _Unchecked("an order can be compared with an order only, by == or !=")
    a: Mapping[Key, Cell] = left.values if isinstance(left, _Many) else {(): left}
    b: Mapping[Key, Cell] = right.values if isinstance(right, _Many) else {(): right}
    axes = left.axes if isinstance(left, _Many) and len(a) >= len(b) else right.axes if isinstance(right, _Many) else ()
    if len(a) == 1:
        only = next(iter(a.values()))
        return axes, [(key, only, v) for key, v in b.items()]
    if len(b) == 1:
        only = next(iter(b.values()))
        return axes, [(key, v, only) for key, v in a.items()]
    assert isinstance(left, _Many) and isinstance(right, _Many)
    if left.axes != right.axes or set(a) != set(b):
        apart = [_where(left.axes, key) for key in a if key not in b] + [_where(right.axes, key) for key in b if key not in a]
        raise _Unchecked(
            f"the two sides have {len(a)} and {len(b)} points that do not meet ({'; '.join(apart[:3])}); add conditions or axes"
        )
    return axes, [(key, v, b[key]) for key, v in a.items()]


def _joined(operator: str, left: _Value, right: _Value) -> _Value:
    axes, pairs = _pairs(left, right)
    found: dict[Key, Cell] = {}
    for key, a, b in pairs:
        if not isinstance(a, float) or not isinstance(b, float):
            raise _Unchecked(f"{operator} needs numbers, not {a!r} and {b!r}")
        if operator == "/" and b == 0:
            raise _Unchecked(f"a division by 0 at {_where(axes, key) or 'the point'}")
        found[key] = a + b if operator == "+" else a - b if operator == "-" else a * b if operator == "*" else a / b
    if isinstance(left, float) and isinstance(right, float):
        value = found[()]
        assert isinstance(value, float)
        return value
    return _Many(axes, found)


def _compare(left: _Value, sign: str, right: _Value) -> tuple[bool, float, str, str, str, int]:
    """(held, slack, left, right, where, points) of the point with the least slack."""
    if isinstance(left, _Order) and isinstance(right, _Order):
        if sign not in ("==", "!="):
            raise _Unchecked(f"an order is compared by == or !=, not by {sign}")
        if set(left.keys) != set(right.keys):
            raise _Unchecked(f"the two orders are of {len(left.keys)} and {len(right.keys)} other points; give both the same conditions")
        texts = [" < ".join("/".join(map(_show, key)) for key in order.keys) for order in (left, right)]
        return (left.keys == right.keys) == (sign == "=="), 0.0, texts[0], texts[1], "", len(left.keys)
    axes, pairs = _pairs(left, right)
    links = []
    for key, a, b in pairs:
        if sign in ("==", "!="):
            same = isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
            held = (eq if sign == "==" else ne)(same, True)
            slack = 0.0
        elif isinstance(a, float) and isinstance(b, float):
            held = _COMPARE[sign](a, b)
            scale = max(abs(a), abs(b)) or 1.0
            slack = ((b - a) if sign.startswith("<") else (a - b)) / scale
        else:
            raise _Unchecked(f"{sign} needs numbers, not {a!r} and {b!r}")
        links.append((held, slack, _show(a), _show(b), _where(axes, key), len(pairs)))
    return min(links, key=lambda link: (link[0], link[1]))


def _show(cell: Cell) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.6g}" if cell.is_integer() or abs(cell) >= 1e5 else f"{cell:.4g}"


def _where(axes: Sequence[str], key: Key) -> str:
    return ", ".join(f"{axis}={_show(cell)}" for axis, cell in zip(axes, key, strict=False))
