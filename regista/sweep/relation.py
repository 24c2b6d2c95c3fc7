"""The language of expected relations: parsed by hand, never evaluated as Python.

    relation   := sum (('<' | '<=' | '>' | '>=' | '==' | '!=') sum)+          a chain holds if every link does, for every point
    sum        := product (('+' | '-') product)*       product := factor (('*' | '/') factor)*
    factor     := NUMBER | "text" | FUNCTION '(' sum [',' sum] ')' | COLUMN ['[' condition (',' condition)* ']'] | '-' factor | '(' sum ')'
    condition  := COLUMN ('=' | '!=' | '<' | '<=' | '>' | '>=') value         a value ends at ',' or ']'; blanks around it do not count

    throughput[stages=2] > 0.95 * throughput[stages=1]         order(throughput) == order(paper)         abs(error_step_time) <= 0.05

A column is one value per selected point.  Two columns meet point by point, where they agree on all axes that no condition fixed; a single
value meets every point.  ``order`` is the points' axes from the smallest value to the largest; it needs more than one value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from planner.ir.errors import InvalidFile
from regista.sweep.keys import nearest

__all__ = ["FUNCTIONS", "PAIRED", "Binary", "Call", "Column", "Condition", "Expr", "Literal", "Relation", "parse_relation", "parse_where"]

PAIRED = ("correlation", "where_least")
"""correlation: Spearman's, of the ranks of two columns.   where_least: the first column's value where the second is least."""

FUNCTIONS = ("abs", "count", "max", "mean", "median", "min", "order", "p90", "rising", "spread", "sum", *PAIRED)
"""p90: the 90th percentile, between order statistics by linear interpolation.   spread: largest over smallest.
rising: 1 if the values never fall in the points' order, else 0.   count: of points with a value, which may be none."""

_COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
_TOKEN = re.compile(r'\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|"([^"]*)"|(<=|>=|==|!=|[<>+\-*/(),])|(\[[^\]]*\]))')
_CONDITION = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*$")
_MOST = 500


@dataclass(frozen=True, slots=True)
class Literal:
    value: float | str


@dataclass(frozen=True, slots=True)
class Condition:
    """``column comparison value``; '=' compares as numbers where both are numbers."""

    column: str
    comparison: str
    value: str


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    where: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """second: only for the functions of PAIRED."""

    function: str
    argument: Expr
    second: Expr | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Expr
    right: Expr


Expr = Literal | Column | Call | Binary


@dataclass(frozen=True, slots=True)
class Relation:
    """``parts[0] comparisons[0] parts[1] comparisons[1] parts[2] ...``"""

    text: str
    parts: tuple[Expr, ...]
    comparisons: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """All columns that it reads, those of conditions included."""
        return frozenset(name for part in self.parts for name in _names(part))


def _names(expr: Expr) -> Iterator[str]:
    match expr:
        case Column(name, where):
            yield name
            yield from (condition.column for condition in where)
        case Call(_, argument, second):
            yield from _names(argument)
            if second is not None:
                yield from _names(second)
        case Binary(_, left, right):
            yield from _names(left)
            yield from _names(right)
        case Literal():
            return


def parse_where(text: str) -> tuple[Condition, ...]:
    """The conditions ``a=1, b>2``; none for an empty text.   Raises InvalidFile."""
    found = []
    for part in text.split(",") if text.strip() else []:
        match = _CONDITION.match(part)
        if match is None or not match[3]:
            raise InvalidFile(f"condition {part.strip()!r}: write COLUMN=VALUE, or with !=, <, <=, >, >=")
        found.append(Condition(match[1], "=" if match[2] == "==" else match[2], match[3].strip('"')))
    return tuple(found)


def parse_relation(text: str) -> Relation:
    """One relation.

    Raises:
        InvalidFile: where the text leaves the language, and what was expected there.

    >>> parse_relation("step_time[stages=2] < 2 * step_time[stages=1]").comparisons
    ('<',)
    """
    if len(text) > _MOST:
        raise InvalidFile(f"a relation of {len(text)} characters; at most {_MOST}, write two")
    return _Parser(text).relation()


class _Parser:
    """Recursive descent; each method eats what its rule says."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise InvalidFile(
                    f"relation {text!r}: {text[at:].strip()[:20]!r} is not of the language (numbers, columns, + - * /, comparisons)"
                )
            kinds = ("number", "name", "text", "sign", "where")
            kind, value = next((k, v) for k, v in zip(kinds, match.groups(), strict=True) if v is not None)
            self.tokens.append((kind, value))
            at = match.end()
        self.at = 0
        self.depth = 0

    def relation(self) -> Relation:
        parts, comparisons = [self.sum()], []
        while self._peek() in {("sign", c) for c in _COMPARISONS}:
            comparisons.append(self._next()[1])
            parts.append(self.sum())
        if self.at < len(self.tokens) or not comparisons:
            rest = " ".join(value for _, value in self.tokens[self.at :])
            raise InvalidFile(f"relation {self.text!r}: a comparison ({' '.join(_COMPARISONS)}) is needed{f' at {rest!r}' if rest else ''}")
        return Relation(self.text, tuple(parts), tuple(comparisons))

    def sum(self) -> Expr:
        left = self.product()
        while self._peek() in (("sign", "+"), ("sign", "-")):
            left = Binary(self._next()[1], left, self.product())
        return left

    def product(self) -> Expr:
        left = self.factor()
        while self._peek() in (("sign", "*"), ("sign", "/")):
            left = Binary(self._next()[1], left, self.factor())
        return left

    def factor(self) -> Expr:
        self.depth += 1
        if self.depth > 50:
            raise InvalidFile(f"relation {self.text!r}: more than 50 levels of brackets")
        found = self._factor()
        self.depth -= 1
        return found

    def _factor(self) -> Expr:
        kind, value = self._next()
        if kind == "number":
            return Literal(float(value))
        if kind == "text":
            return Literal(value)
        if (kind, value) == ("sign", "-"):
            return Binary("-", Literal(0.0), self.factor())
        if (kind, value) == ("sign", "("):
            inner = self.sum()
            self._close()
            return inner
        if kind == "name" and self._peek() == ("sign", "("):
            if value not in FUNCTIONS:
                raise InvalidFile(
                    f"relation {self.text!r}: no function {value!r}{nearest(value, FUNCTIONS)} (there are {', '.join(FUNCTIONS)})"
                )
            self._next()
            argument, second = self.sum(), None
            if value in PAIRED:
                if self._peek() != ("sign", ","):
                    raise InvalidFile(f"relation {self.text!r}: {value} takes two columns, {value}(A, B)")
                self._next()
                second = self.sum()
            self._close()
            return Call(value, argument, second)
        if kind == "name":
            where = self._next()[1][1:-1] if self._peek()[0] == "where" else ""
            return Column(value, parse_where(where))
        raise InvalidFile(f"relation {self.text!r}: a number, a column or a function is needed at {value!r}")

    def _close(self) -> None:
        if self._peek() != ("sign", ")"):
            raise InvalidFile(f"relation {self.text!r}: a bracket is not closed")
        self._next()

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "the end")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        if token[0] == "end":
            raise InvalidFile(f"relation {self.text!r} ends too early; a number, a column or a function is missing")
        self.at += 1
        return token
