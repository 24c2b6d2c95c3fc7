"""The small slips that would still be a program: at every place of a module's syntax tree, what it could have been instead.

    comparison   a < b  ->  a <= b          condition   if a:  ->  if not a:        statement   x.n = 1  ->  pass
    arithmetic   a + b  ->  a - b           junction    a and b  ->  a or b         arguments   f(a, b)  ->  f(b, a)
    constant     3      ->  4               function    min(..)  ->  max(..)        result      return a  ->  return None
                                            jump        break  ->  continue

Left alone is what no behaviour hangs on: docstrings, texts, what an error says, annotations, decorators, ``__all__``, ``__repr__``; and what is
asserted: ``assert``, ``strict=`` of a zip.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy

__all__ = ["Slip", "slips_of"]

Slip = tuple[str, ast.expr | ast.stmt, str]
"""Its kind, the node that becomes something else, and the text that it becomes."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_UNTOUCHED_CALLS = {"assert_never", "cast", "isinstance", "print"}
_UNTOUCHED_NAMES = {"__all__", "__slots__"}
_UNTOUCHED_KEYWORDS = {"repr", "strict"}
_UNTOUCHED_FUNCTIONS = {"__repr__", "__str__"}
_LOGS = {"log", "logger", "logging", "warnings"}


def slips_of(module: ast.Module) -> list[Slip]:
    finder = _Finder()
    finder.visit(module)
    return finder.slips


class _Finder(ast.NodeVisitor):
    """Walks a module and notes its slips; what it does not visit stays as it is."""

    def __init__(self) -> None:
        self.slips: list[Slip] = []

    def note(self, kind: str, node: ast.expr | ast.stmt, changed: ast.AST | str) -> None:
        self.slips.append((kind, node, changed if isinstance(changed, str) else ast.unparse(changed)))

    def generic_visit(self, node: ast.AST) -> None:
        self.test_of(node)
        super().generic_visit(node)

    def test_of(self, node: ast.AST) -> None:
        """A condition that is no comparison and no junction of several is negated whole."""
        tests = node.ifs if isinstance(node, ast.comprehension) else [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
        for test in tests:
            if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.NamedExpr):
                self.note("condition", test, ast.UnaryOp(ast.Not(), test))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in _UNTOUCHED_FUNCTIONS:
            return
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass  # a text; and its parts have no place of their own before Python 3.12

    def visit_match_case(self, node: ast.match_case) -> None:
        for part in [*([node.guard] if node.guard else []), *node.body]:
            self.visit(part)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.note("statement", node, "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            if not isinstance(node.target, ast.Name):
                self.note("statement", node, "pass")
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id in _UNTOUCHED_NAMES for target in node.targets):
            return
        if not any(isinstance(part, ast.Name) for target in node.targets for part in _targets(target)):
            self.note("statement", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.note("statement", node, "pass")
        if type(node.op) in _OPERATORS:
            changed = deepcopy(node)
            changed.op = _OPERATORS[type(node.op)]()
            self.note("statement", node, changed)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func).partition(".")[0] in {*_LOGS, *_UNTOUCHED_CALLS}:
                return
            self.note("statement", node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self.note("result", node, "return None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.note("jump", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.note("jump", node, "break")

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            changed = deepcopy(node)
            changed.ops[index] = _COMPARISONS[type(operator)]()
            self.note("comparison", node, changed)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS and not any(_is_sequence(side) for side in (node.left, node.right)):
            changed = deepcopy(node)
            changed.op = _OPERATORS[type(node.op)]()
            self.note("arithmetic", node, changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        changed = deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.note("junction", node, changed)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.note("condition", node, node.operand)
        elif isinstance(node.op, ast.USub):
            self.note("arithmetic", node, node.operand)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _UNTOUCHED_CALLS:
            return
        if name in _FUNCTIONS:
            changed = deepcopy(node)
            changed.func = ast.Name(_FUNCTIONS[name])
            if name == "sorted":
                changed.keywords = []
            self.note("function", node, changed)
        elif len(node.args) > 1 and not any(isinstance(arg, ast.Starred) for arg in node.args[:2]):
            changed = deepcopy(node)
            changed.args[:2] = reversed(changed.args[:2])
            self.note("arguments", node, changed)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _UNTOUCHED_KEYWORDS:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.note("constant", node, ast.Constant(not node.value))
        elif isinstance(node.value, int | float):
            self.note("constant", node, ast.Constant(node.value + 1))


def _targets(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _targets(part)
    else:
        yield target


def _is_sequence(node: ast.expr) -> bool:
    """Texts and lists written out: another operator on them is an error at once, which any test would see."""
    return isinstance(node, ast.List | ast.Tuple | ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
