"""Which ops have an SBP rule, and what of that a model's training step uses."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

import planner.opset
from planner.frontend import Program
from planner.ir.errors import UnknownOp
from planner.ir.graph import Role
from planner.opset import factor_rule, known_targets

__all__ = ["Used", "families", "families_json", "show_families", "show_used", "used_json", "used_ops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A target of a model's training step: how often it stands there, by role, and the module where it stands first.

    family: the family of the op set that has its rule; None: it has none, and ``way_out`` says which lines would add it.
    """

    target: str
    family: str | None
    counts: Mapping[Role, int]
    module: str
    way_out: str = ""

    @property
    def count(self) -> int:
        return sum(self.counts.values())


def families() -> dict[str, tuple[str, ...]]:
    """Family -> the targets that have a rule there: the modules of planner.opset that hold a TABLE.  Both sorted."""
    found: dict[str, tuple[str, ...]] = {}
    for module in pkgutil.iter_modules(planner.opset.__path__):
        table = getattr(import_module(f"planner.opset.{module.name}"), "TABLE", None)
        if table:
            found[module.name] = tuple(sorted(set(table) & known_targets()))
    return dict(sorted(found.items()))


def used_ops(program: Program) -> tuple[Used, ...]:
    """The targets of one training step (forward, backward and update), those without a rule first, then by how often they are used.

    Raises:
        RegistaError: the program cannot be traced.
    """
    graph = program.graph(1)
    family_of = {target: family for family, targets in families().items() for target in targets}
    first = {op.target: op for op in reversed(graph.ops)}
    counts = Counter((op.target, op.role) for op in graph.ops)
    found = []
    for target, op in first.items():
        way_out = ""
        try:
            if target not in family_of:
                factor_rule(op, {})
        except UnknownOp as error:
            way_out = str(error)
        roles = {role: counts[target, role] for role in Role if counts[target, role]}
        found.append(Used(target=target, family=family_of.get(target), counts=roles, module=op.module or "<root>", way_out=way_out))
    return tuple(sorted(found, key=lambda used: (used.family is not None, -used.count, used.target)))


def families_json(found: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    return {"targets": sum(map(len, found.values())), "families": {family: list(targets) for family, targets in found.items()}}


def used_json(model: str, used: tuple[Used, ...]) -> dict[str, object]:
    return {
        "model": model,
        "ops": sum(u.count for u in used),
        "targets": [
            {
                "target": u.target,
                "family": u.family,
                "count": u.count,
                "by_role": {role.value: count for role, count in u.counts.items()},
                "module": u.module,
            }
            for u in used
        ],
        "without_rule": {u.target: u.way_out for u in used if u.family is None},
    }


def show_families(found: Mapping[str, tuple[str, ...]]) -> RenderableType:
    """One row per family."""
    total = sum(map(len, found.values()))
    table = Table("family", "targets", "names", title=f"{total} targets have an SBP rule", title_justify="left")
    for family, targets in found.items():
        table.add_row(family, str(len(targets)), escape(", ".join(t.removeprefix("aten.").removesuffix(".default") for t in targets)))
    table.caption = "names without 'aten.' and '.default'; 'regista ops --model MODEL' says which of them a model uses"
    return table


def show_used(model: str, used: tuple[Used, ...]) -> RenderableType:
    """One row per target, then what is missing and how to add it."""
    missing = [u for u in used if u.family is None]
    ops = sum(u.count for u in used)
    roles = [role for role in Role if any(role in u.counts for u in used)]
    title = f"{escape(model)}: {ops} ops, {len(used)} targets, {len(missing)} without a rule"
    table = Table(title=title, title_justify="left")
    for column in ("target", "family", "ops", *(role.value for role in roles), "first in module"):
        table.add_column(column, overflow="fold")
    for u in used:
        counts = (str(u.counts.get(role, "-")) for role in roles)
        table.add_row(escape(u.target), u.family or "[red]none[/red]", str(u.count), *counts, escape(u.module))
    return Group(table, *(escape(f"\n{u.way_out}") for u in missing))
