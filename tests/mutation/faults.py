"""A fault as a change of a module's text, so that a reader of the results sees what was planted where."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType

from tests.mutation.slips import slips_of

__all__ = ["Fault", "changes_program", "faults_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The text between two places (line, column in bytes, as ast counts) becomes another."""

    module: str
    kind: str
    before: str
    after: str
    start: tuple[int, int]
    end: tuple[int, int]

    @property
    def key(self) -> tuple[str, ...]:
        """As the columns module, line, column, kind, before, after of the results have it."""
        return self.module, str(self.start[0]), str(self.start[1]), self.kind, self.before, self.after

    def planted(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        (first, at), (last, until) = self.start, self.end
        text = self.after if self.kind in ("statement", "result", "jump") else f"({self.after})"
        middle = lines[first - 1][:at] + text.encode() + lines[last - 1][until:]
        return b"".join([*lines[: first - 1], middle, *lines[last:]]).decode()


def faults_of(module: str, source: str) -> list[Fault]:
    """All faults of a module, by place."""
    faults = []
    for kind, node, after in slips_of(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        faults.append(Fault(module=module, kind=kind, before=ast.unparse(node), after=after, start=start, end=end))
    return faults


def changes_program(fault: Fault, source: str) -> bool:
    """Whether the module's bytecode becomes another; where it does not, no test can see the fault."""
    return _meaning(compile(fault.planted(source), fault.module, "exec")) != _meaning(compile(source, fault.module, "exec"))


def _meaning(code: CodeType) -> tuple[object, ...]:
    """Bytecode without places: equal for two programs that do the same instructions."""
    constants = tuple(_meaning(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable
