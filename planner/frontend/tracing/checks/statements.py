"""Which statements are checks of values, and what they need an expression to be, read off the source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dis import opname
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import NamedTuple

__all__ = ["Needed", "check_at", "compares_number"]

_Place = tuple[int | None, int | None, int | None, int | None]
"""First and last line, and the columns there."""
_MOST_SHOWN = 100


class Needed(NamedTuple):
    """wanted: what an expression has to be for the check to go on.   text: the check and its file.

    No line: it would make another Plan of a program that was moved within its file.
    """

    wanted: bool
    text: str


def check_at(frame: FrameType) -> Needed | None:
    """What the check that this frame evaluates needs the expression to be that it asks now; None: it is no check, or not known."""
    return _needed_at(frame.f_code.co_filename, *_place(frame), False)


def compares_number(frame: FrameType) -> bool:
    """Whether ``X.item()``, which this frame calls, is a side of a comparison that a check needs to be true or false."""
    return _needed_at(frame.f_code.co_filename, *_place(frame), True) is not None


def _place(frame: FrameType) -> tuple[_Place, bool]:
    """Where the expression stands that is called or asked for its truth; whether a jump or ``not`` asks it, and no function.

    What a jump asks was made by the instruction before it; its own place is that of its statement, or of another expression.
    """
    code = frame.f_code
    places = list(islice(code.co_positions(), frame.f_lasti // 2 + 1))
    last = at = len(places) - 1
    while at and _asks(opname[code.co_code[2 * at]]):
        at -= 1
    return places[at], at < last


def _asks(name: str) -> bool:
    return "JUMP" in name or name in _ASKING


_ASKING = frozenset({"TO_BOOL", "UNARY_NOT", "COPY", "EXTENDED_ARG"})
"""Instructions that ask the value on the stack, beside jumps, or stand between it and a jump."""


@lru_cache(maxsize=256)
def _needed_at(file: str, place: _Place, directly: bool, asks_for_number: bool) -> Needed | None:
    for statement, needed in _checks_in(file):
        if statement.lineno <= (place[0] or 0) and (place[1] or 0) <= (statement.end_lineno or 0):
            test = statement.test
            wanted = _needed_of_number(test, needed, place) if asks_for_number else _needed(test, needed, place, directly)
            return None if wanted is None else Needed(wanted, f"'{_shown(statement)}' in {Path(file).name}")
    return None


def _shown(statement: ast.Assert | ast.If) -> str:
    test = ast.unparse(statement.test)
    test = test if len(test) <= _MOST_SHOWN else test[:_MOST_SHOWN] + " ..."
    return f"assert {test}" if isinstance(statement, ast.Assert) else f"if {test}: raise"


@lru_cache(maxsize=64)
def _checks_in(file: str) -> tuple[tuple[ast.Assert | ast.If, bool], ...]:
    """Statements of a file that raise or go on in one way, and what their condition is then; inner ones first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    caught = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers for s in node.body for inner in ast.walk(s)
    }
    found: list[tuple[ast.Assert | ast.If, bool]] = []
    for node in ast.walk(tree):
        if id(node) in caught:
            continue  # what it raises may be caught
        if isinstance(node, ast.Assert):
            found.append((node, True))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and all(isinstance(s, _GOES_ON) for s in node.body[:-1]):
            found.append((node, False))
    return tuple(sorted(found, key=lambda entry: -entry[0].lineno))


_GOES_ON = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr
"""Statements that go nowhere but to the next."""


def _is_at(node: ast.AST, place: _Place) -> bool:
    return (getattr(node, "lineno", None), getattr(node, "end_lineno", None), *_columns(node)) == place


def _columns(node: ast.AST) -> tuple[int | None, int | None]:
    return getattr(node, "col_offset", None), getattr(node, "end_col_offset", None)


def _conditions(node: ast.expr, needed: bool) -> Iterator[tuple[ast.expr, bool]]:
    """The operands of ``not``, ``and`` and ``or`` within ``node``, each with what it has to be, so that the whole is ``needed``."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _conditions(inner, not needed)
        case ast.BoolOp(op=op, values=operands):
            each = needed if isinstance(op, ast.And) else not needed
            # All operands, or the last alone: those before have had their say.
            for operand in operands if each else operands[-1:]:
                yield from _conditions(operand, needed)
        case _:
            yield node, needed


def _needed(node: ast.expr, needed: bool, place: _Place, directly: bool) -> bool | None:
    """What the expression at ``place`` within ``node`` has to be, so that the whole is ``needed``.

    Functions that ask what they are given (any, all, in) may go on in more ways than one; but bool and item.
    """
    for condition, wanted in _conditions(node, needed):
        match condition:
            case ast.Call(func=ast.Name(id="bool"), args=[inner]):
                if (within := _needed(inner, wanted, place, directly)) is not None:
                    return within
                by_itself = True
            case ast.Call(func=ast.Attribute(attr="item"), args=[]):
                by_itself = True
            case ast.Compare(ops=[_, _, *_]) if not wanted:
                continue  # of a < b < c either part may be what fails
            case _:
                by_itself = directly
        if by_itself and _is_at(condition, place):
            return wanted
    return None


def _needed_of_number(node: ast.expr, needed: bool, place: _Place) -> bool | None:
    """The same of the comparison that has ``X.item()`` at ``place`` on one of its sides."""
    for condition, wanted in _conditions(node, needed):
        match condition:
            case ast.Compare(left=left, ops=[_], comparators=[right]) if _is_at(left, place) or _is_at(right, place):
                return wanted
    return None
