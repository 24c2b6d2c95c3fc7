"""Relations of manifests: Python expressions over the columns of a sweep's rows, limited to a closed list of constructs.

    throughput[mesh == 32] / throughput[mesh == 1] < 31        order(throughput) == order(paper)        abs(error_step_time) <= 0.05

    a relation     sides joined by < <= > >= == !=; a chain a < b < c holds if every link does, at every point
    a side         numbers, 'texts', columns, + - * /, brackets, and the functions of FUNCTIONS
    a column       one value per point; COLUMN[CONDITION, ...] takes the points that meet every condition
    a condition    COLUMN comparison VALUE: mesh == 8, mesh == '2x4', layers >= 4

Two columns meet point by point, where they agree on all axes that no == condition fixed; a single value meets every point.

``ast`` reads the text, this module refuses every construct that is not on the list, and regista.sweep.check walks the tree.  Nothing is handed to
Python's own evaluation: there are no attributes, no imports, and no calls but those of FUNCTIONS.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.ir.errors import InvalidFile
from planner.ir.text import number_or_text
from regista.sweep.keys import nearest

__all__ = [
    "ARITHMETIC",
    "FUNCTIONS",
    "Condition",
    "Relation",
    "conditions_of",
    "parse_conditions",
    "parse_plain_condition",
    "parse_relation",
]

FUNCTIONS = {
    **dict.fromkeys(("abs", "count", "max", "mean", "median", "min", "order", "rising", "spread", "sum"), 1),
    **dict.fromkeys(("quantile", "rank_correlation", "where_least"), 2),
}
"""Function -> number of its arguments.

order: the points' axes from the smallest value to the largest.   rising: 1 if the values never fall in the points' order, else 0.
spread: largest over smallest.   count: of points with a value, which may be none.   quantile(x, 0.9): the 90th percentile.
rank_correlation(x, y): Spearman's.   where_least(x, y): the value of x at the point where y is least."""

ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_MOST_NODES = 200


@dataclass(frozen=True, slots=True)
class Condition:
    """``column comparison value``; the comparison is one of < <= > >= == !=."""

    column: str
    comparison: str
    value: float | str

    def __str__(self) -> str:
        return f"{self.column} {self.comparison} {self.value if isinstance(self.value, str) else format(self.value, 'g')}"


@dataclass(frozen=True, slots=True)
class Relation:
    """``sides[0] comparisons[0] sides[1] comparisons[1] sides[2] ...``; the sides are trees of the constructs that the module's text lists."""

    text: str
    sides: tuple[ast.expr, ...] = field(compare=False)
    comparisons: tuple[str, ...] = field(compare=False)

    @property
    def names(self) -> frozenset[str]:
        """All columns that it reads, those of conditions included."""
        return frozenset(name for side in self.sides for name in _names(side))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _names(child)


def parse_relation(text: str) -> Relation:
    """One relation.

    Raises:
        InvalidFile: the text is no Python expression, or has a construct that is not on the list; it says which.

    >>> parse_relation("step_time[stages == 2] < 2 * step_time[stages == 1]").comparisons
    ('<',)
    """
    tree = _parsed(text)
    if not isinstance(tree, ast.Compare):
        raise InvalidFile(
            f"relation {text!r}: a comparison ({' '.join(_COMPARISONS.values())}) is needed; write two statements as two relations"
        )
    sides = (tree.left, *tree.comparators)
    try:
        for side in sides:
            _check(side)
        return Relation(text, sides, tuple(map(_comparison, tree.ops)))
    except InvalidFile as error:
        raise InvalidFile(f"relation {text!r}: {error}") from None


def parse_expression(text: str) -> ast.expr:
    """One side of a relation by itself, for a figure that is computed from rows.   Raises InvalidFile as parse_relation."""
    tree = _parsed(text)
    try:
        _check(tree)
        return tree
    except InvalidFile as error:
        raise InvalidFile(f"expression {text!r}: {error}") from None


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """The conditions ``a == 1, b != 'x'`` as they stand in a column's brackets; none for an empty text.   Raises InvalidFile."""
    return conditions_of(_parsed(f"rows[{text}]")) if text.strip() else ()


def parse_plain_condition(text: str) -> Condition:
    """A condition of a command line, where a text stands without quotes: ``stages=2``, ``mesh=2x4``, ``layers>=4``.   Raises InvalidFile.

    >>> parse_plain_condition("mesh=2x4")
    Condition(column='mesh', comparison='==', value='2x4')
    """
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*", text)
    if match is None:
        raise InvalidFile(f"condition {text.strip()!r}: write COLUMN=VALUE, or with !=, <, <=, >, >=")
    value = number_or_text(match[3])
    return Condition(match[1], "==" if match[2] == "=" else match[2], value if isinstance(value, str) else float(value))


def conditions_of(column: ast.expr) -> tuple[Condition, ...]:
    """The conditions in the brackets of a column; none for a column without brackets.   Raises InvalidFile: one is no condition."""
    if not isinstance(column, ast.Subscript):
        return ()
    conditions = []
    for part in column.slice.elts if isinstance(column.slice, ast.Tuple) else (column.slice,):
        match part:
            case ast.Compare(left=ast.Name(id=name), ops=[sign], comparators=[right]) if (value := _value(right)) is not None:
                conditions.append(Condition(name, _comparison(sign), value))
            case _:
                raise InvalidFile(
                    f"{ast.unparse(part)!r} is no condition; write COLUMN == VALUE, or with !=, <, <=, >, >=, a text in quotes"
                )
    return tuple(conditions)


def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidFile(f"relation {text!r}: {error.msg}; conditions are written mesh == 8 or mesh == '2x4'") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidFile(f"relation {text[:60]!r}: is no Python expression ({error})") from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise InvalidFile(f"relation {text[:60]!r} ...: more than {_MOST_NODES} parts; write two relations")
    return tree


def _check(node: ast.expr) -> None:
    """Raises InvalidFile at the first construct that is not on the list."""
    match node:
        case ast.Name():
            return
        case ast.Constant() if _value(node) is not None:
            return
        case ast.Subscript(value=ast.Name()):
            conditions_of(node)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in ARITHMETIC:
            _check(left)
            _check(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in FUNCTIONS:
                raise InvalidFile(f"no function {name!r}{nearest(name, FUNCTIONS)} (there are {', '.join(FUNCTIONS)})")
            if len(arguments) != FUNCTIONS[name] or (name == "count" and not isinstance(arguments[0], ast.Name | ast.Subscript)):
                raise InvalidFile(f"{ast.unparse(node)!r}: {name} takes {('one column', 'two columns')[FUNCTIONS[name] - 1]}")
            for argument in arguments:
                _check(argument)
        case _:
            raise InvalidFile(f"{ast.unparse(node)!r} is not of the language (numbers, 'texts', columns, + - * /, comparisons, functions)")


def _comparison(sign: ast.cmpop) -> str:
    if type(sign) not in _COMPARISONS:
        raise InvalidFile(f"a comparison is one of {' '.join(_COMPARISONS.values())}")
    return _COMPARISONS[type(sign)]


def _value(node: ast.expr) -> float | str | None:
    """The number or text that a constant stands for; None for every other node."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) < 1e300:
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if abs(number) < 1e300:
            return -float(number)
    return None
