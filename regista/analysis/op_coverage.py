"""Which ops have an SBP rule, and which of them a model's training step uses."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import planner.opset
from planner.frontend import Program
from planner.frontend.to_graph.handling import Handled, core_operators, handled
from planner.ir.graph import Role
from planner.opset import how_to_add, known_targets

__all__ = ["Used", "core_coverage", "families", "used_ops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A target of a model's training step: how often it stands there, by role, and the module where it stands first.

    family: the family of the op set that has its rule; None: it has none, so every device performs it with whole inputs, and ``way_out``
        says which lines would add a rule.
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
    targets_of: dict[str, tuple[str, ...]] = {}
    for module in pkgutil.walk_packages(planner.opset.__path__, "planner.opset."):
        table = getattr(import_module(module.name), "TABLE", None)
        if table:
            targets_of[module.name.rpartition(".")[2]] = tuple(sorted(set(table) & known_targets()))
    return dict(sorted(targets_of.items()))


def core_coverage() -> dict[str, Handled]:
    """Operator of torch's Core ATen set -> what becomes of it in a traced step, sorted by name."""
    return {str(op): handled(op) for op in core_operators()}


def used_ops(program: Program) -> tuple[Used, ...]:
    """The targets of one training step (forward, backward and update), those without a rule first, then by how often they are used.

    Raises:
        RegistaError: the program cannot be traced.
    """
    graph = program.graph(1)
    family_of = {target: family for family, targets in families().items() for target in targets}
    first = {op.target: op for op in reversed(graph.ops)}
    counts = Counter((op.target, op.role) for op in graph.ops)
    coverage = []
    for target, op in first.items():
        way_out = "" if target in family_of else how_to_add(op)
        roles = {role: counts[target, role] for role in Role if counts[target, role]}
        coverage.append(Used(target=target, family=family_of.get(target), counts=roles, module=op.module or "<root>", way_out=way_out))
    return tuple(sorted(coverage, key=lambda used: (used.family is not None, -used.count, used.target)))
