"""What code a function needs: what it names, what that names, and so on, from the syntax alone.

    reached(root, ("planner.validate.validate.validate",))      file -> the definitions that are needed, and of these the texts of messages

A name stands for the definition that it has in its module or that it is imported from; ``x.name`` for every method of that name of any class that
is needed.  A class is needed with its bases, the types of those fields that are read, and the methods that the language calls (``__post_init__``,
...; not ``__str__`` and ``__repr__``, which make texts).  So more is found than is ever run, and never less, but for names that are put together at
run time.

Left out are *messages*: the arguments of what is raised, and the local values that are read nowhere else.  Whatever they are, an error is raised.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

__all__ = ["Needed", "reached"]

Place = tuple[int, int]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TEXTS = {"__repr__", "__str__"}
_CHANGING = {"add", "append", "discard", "pop", "popleft", "remove", "setdefault", "update"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What is needed of a file.

    functions: their names, those of methods with their class.   pieces: the statements that are needed.   left_out: parts of these that are not.
    """

    functions: tuple[str, ...]
    pieces: tuple[ast.stmt, ...]
    left_out: tuple[ast.AST, ...]

    def holds(self, start: Place, end: Place) -> bool:
        """Whether the text between two places (line, column) is needed."""
        return any(_covers(piece, start, end) for piece in self.pieces) and not any(_covers(part, start, end) for part in self.left_out)

    def lines(self, source: str) -> int:
        """Lines of code: without blank lines, comments, docstrings and what is left out."""
        texts, counted = source.splitlines(), set[int]()
        silent = [*self.left_out, *(docstring for piece in self.pieces for docstring in _docstrings(piece))]
        for piece in self.pieces:
            for number in range(_first_line(piece), (piece.end_lineno or piece.lineno) + 1):
                text = texts[number - 1].strip()
                start = len(texts[number - 1].encode()) - len(texts[number - 1].lstrip().encode())
                end = start + len(text.rstrip("),]").encode())
                if text and not text.startswith("#") and not any(_covers(part, (number, start), (number, end)) for part in silent):
                    counted.add(number)
        return len(counted)


def reached(root: Path, begins: Sequence[str], prices: Collection[str] = ()) -> Mapping[Path, Needed]:
    """What is needed of each file below ``root``, if anything is, by its path from there.

    Args:
        begins: the dotted names of functions, methods, and classes with all their methods.
        prices: keyword arguments that nothing of it reads as an attribute; their values are left out.

    Raises:
        ValueError: a name begins nothing, or a price is read.
    """
    search = _Search(root=root, prices=frozenset(prices))
    for name in begins:
        search.begin(name)
    search.finish()
    if read := search.attributes & search.prices:
        raise ValueError(f"{sorted(read)} are read, so their values are needed")
    return search.needed()


@dataclass(frozen=True, eq=False, kw_only=True)
class _Module:
    """A module's top level."""

    path: Path
    body: Sequence[ast.stmt]

    @cached_property
    def definitions(self) -> Mapping[str, list[ast.stmt]]:
        named: dict[str, list[ast.stmt]] = defaultdict(list)
        for statement in self.body:
            for name in _names_of(statement):
                named[name].append(statement)
        return named

    @cached_property
    def imports(self) -> Mapping[str, tuple[str, str]]:
        """Name -> (module, name there); the name is empty where it stands for a module."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(ast.Module(list(self.body), [])):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.asname or alias.name.partition(".")[0]: (alias.name, "") for alias in node.names}
        return found

    @property
    def effects(self) -> Iterator[ast.stmt]:
        """What runs when the module is imported, beside definitions."""
        for statement in self.body:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (is_text or isinstance(statement, ast.Import | ast.ImportFrom) or _names_of(statement)):
                yield statement


@dataclass(slots=True, kw_only=True)
class _Search:
    root: Path
    prices: frozenset[str]
    attributes: set[str] = field(default_factory=set)
    _modules: dict[str, _Module] = field(default_factory=dict)
    _seen: set[tuple[Path, str]] = field(default_factory=set)
    _methods: dict[str, list[tuple[_Module, str, _Function]]] = field(default_factory=lambda: defaultdict(list))
    _fields: dict[str, list[tuple[_Module, ast.expr]]] = field(default_factory=lambda: defaultdict(list))
    _pieces: dict[Path, dict[ast.stmt, None]] = field(default_factory=lambda: defaultdict(dict))
    _left_out: dict[Path, list[ast.AST]] = field(default_factory=lambda: defaultdict(list))
    _functions: dict[Path, list[str]] = field(default_factory=lambda: defaultdict(list))

    def module(self, name: str) -> _Module | None:
        if name not in self._modules:
            place = self.root / Path(*name.split("."))
            path = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
            if path is None:
                return None
            self._modules[name] = _Module(path=path.relative_to(self.root), body=ast.parse(path.read_text(encoding="utf-8")).body)
        return self._modules[name]

    def reach(self, module: _Module | None, name: str) -> bool:
        """Note what a name of a module stands for; False: for nothing of ours."""
        if module is None:
            return False
        if name in module.definitions:
            if (module.path, name) not in self._seen:
                self._seen.add((module.path, name))
                for statement in module.effects:
                    self._take(module, statement)
                for statement in module.definitions[name]:
                    self._define(module, name, statement)
            return True
        if name in module.imports:
            source, there = module.imports[name]
            return bool(there) and (self.module(f"{source}.{there}") is not None or self.reach(self.module(source), there))
        return False

    def begin(self, name: str) -> None:
        """A function, a class with all its methods, or one method."""
        owner, _, last = name.rpartition(".")
        module, _, class_name = owner.rpartition(".")
        of_class = self.module(owner) is None
        if not (self.reach(self.module(module), class_name) if of_class else self.reach(self.module(owner), last)):
            raise ValueError(f"no module defines {name}")
        known = [method for method, places in self._methods.items() if any(place[1] == last for place in places)]
        self.attributes.update([last] if of_class else known)

    def finish(self) -> None:
        """Methods, and types of fields, by the names of attributes that are read, until there are no more."""
        while ready := self.attributes & (self._methods.keys() | self._fields.keys()):
            for name in sorted(ready):
                for module, owner, method in self._methods.pop(name, []):
                    self._function(module, f"{owner}.{name}", method)
                for module, annotation in self._fields.pop(name, []):
                    self._follow(module, annotation, ())

    def needed(self) -> dict[Path, Needed]:
        return {
            path: Needed(functions=tuple(self._functions[path]), pieces=tuple(pieces), left_out=tuple(self._left_out[path]))
            for path, pieces in sorted(self._pieces.items())
        }

    def _define(self, module: _Module, name: str, statement: ast.stmt) -> None:
        if isinstance(statement, _Function):
            self._function(module, name, statement)
        elif not isinstance(statement, ast.ClassDef):
            self._take(module, statement)
        else:
            for part in (*statement.decorator_list, *statement.bases, *statement.keywords):
                self._follow(module, part, ())
            for part in statement.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    self._take(module, part, is_field=True)
                    self._fields[part.target.id].append((module, part.annotation))
                elif not isinstance(part, _Function):
                    self._take(module, part)
                elif part.name.startswith("__") and part.name not in _TEXTS:
                    self._function(module, f"{name}.{part.name}", part)
                else:
                    self._methods[part.name].append((module, name, part))

    def _function(self, module: _Module, name: str, function: _Function) -> None:
        self._functions[module.path].append(name)
        self._take(module, function)

    def _take(self, module: _Module, piece: ast.stmt, is_field: bool = False) -> None:
        if piece in self._pieces[module.path]:
            return
        self._pieces[module.path][piece] = None
        left_out = [
            *(_messages(piece) if isinstance(piece, _Function) else ()),
            *(k.value for k in ast.walk(piece) if isinstance(k, ast.keyword) and k.arg in self.prices),
        ]
        left_out += [node.value for node in [piece] if isinstance(node, ast.AnnAssign) and node.value and _price_field(node, self.prices)]
        self._left_out[module.path] += left_out
        value = piece.value if is_field and isinstance(piece, ast.AnnAssign) else piece
        if value is not None:
            self._follow(module, value, left_out)

    def _follow(self, module: _Module, node: ast.AST, left_out: Collection[ast.AST]) -> None:
        if any(node is part for part in left_out):
            return
        if isinstance(node, ast.Name):
            self.reach(module, node.id)
        elif isinstance(node, ast.Attribute):
            source, there = module.imports.get(node.value.id, ("", "")) if isinstance(node.value, ast.Name) else ("", "")
            if not (source and self.reach(self.module(f"{source}.{there}" if there else source), node.attr)):
                self.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            self.attributes.update([node.value] if node.value in self._methods else [])  # getattr, attrgetter
        for child in ast.iter_child_nodes(node):
            self._follow(module, child, left_out)


def _messages(function: ast.stmt) -> list[ast.AST]:
    """What enters nothing but the text of an error."""
    messages: list[ast.AST] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            messages += [*node.exc.args, *(keyword.value for keyword in node.exc.keywords)]
    assigned: dict[str, list[tuple[tuple[str, ...], ast.expr]]] = defaultdict(list)
    stored: dict[str, int] = defaultdict(int)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for names, value in _assignments(node.targets[0], node.value):
                for name in names:
                    assigned[name].append((names, value))
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored[node.id] += 1
    waiting = {name: values for name, values in assigned.items() if stored[name] == len(values)}
    while waiting:
        read = set(_read_beside(function, messages))
        texts = {name for name in waiting if name not in read}
        taken = [
            value
            for name in texts
            for names, value in waiting[name]
            if not read & set(names) and set(names) <= waiting.keys() and _changes_nothing(value)
        ]
        if not texts:
            break
        messages += taken
        waiting = {name: values for name, values in waiting.items() if name not in texts}
    return messages


def _assignments(target: ast.expr, value: ast.expr) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    if isinstance(target, ast.Name):
        yield (target.id,), value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for part, given in zip(target.elts, value.elts, strict=True):
            yield from _assignments(part, given)
    elif isinstance(target, ast.Tuple) and all(isinstance(part, ast.Name) for part in target.elts):
        yield tuple(part.id for part in target.elts if isinstance(part, ast.Name)), value


def _changes_nothing(value: ast.expr) -> bool:
    return not any(
        isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING)
        for node in ast.walk(value)
    )


def _read_beside(node: ast.AST, messages: Sequence[ast.AST]) -> Iterator[str]:
    """The names that are read outside of the messages."""
    if any(node is message for message in messages):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _read_beside(child, messages)


def _names_of(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module's top level defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _price_field(node: ast.AnnAssign, prices: Collection[str]) -> bool:
    return isinstance(node.target, ast.Name) and node.target.id in prices


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(part.lineno for part in getattr(statement, "decorator_list", []))])


def _docstrings(piece: ast.stmt) -> Iterator[ast.AST]:
    for node in ast.walk(piece):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def _covers(node: ast.AST, start: Place, end: Place) -> bool:
    assert isinstance(node, ast.expr | ast.stmt)
    return (node.lineno, node.col_offset) <= start and end <= (node.end_lineno or 0, node.end_col_offset or 0)
