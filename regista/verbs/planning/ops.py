"""The verb 'ops': the ops that have an SBP rule, those that a model uses, or what becomes of torch's Core ATen set."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.graph import Role
from regista.verbs.arguments import MODEL_HELP
from regista.verbs.screen import Json, show, status

if TYPE_CHECKING:
    from planner.frontend.to_graph.handling import Handled
    from regista.analysis.op_coverage import Used

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--core", action="store_true", help="say of each operator of torch's Core ATen set: rule, opened, whole inputs, or refused, and why"
    )
    which.add_argument("--model", metavar="MODEL", help="say which targets its training step uses and which lack a rule: " + MODEL_HELP)


def perform(args: argparse.Namespace) -> Json:
    import regista.api as api
    from regista.analysis.op_coverage import core_coverage, families, used_ops

    if args.core:
        coverage = core_coverage()
        show(args, _core_table(coverage))
        return {"operators": {name: {"how": op.how.value, "reason": op.reason} for name, op in coverage.items()}}
    if args.model is None:
        targets_of = families()
        show(args, _families_table(targets_of))
        return _families_json(targets_of)
    with status(args, "tracing ..."):
        used = used_ops(api.program_of(args.model))
    show(args, _used_table(args.model, used))
    return _used_json(args.model, used)


def _families_json(targets_of: Mapping[str, tuple[str, ...]]) -> Json:
    return {"targets": sum(map(len, targets_of.values())), "families": {family: list(targets) for family, targets in targets_of.items()}}


def _used_json(model: str, used: tuple[Used, ...]) -> Json:
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


def _families_table(targets_of: Mapping[str, tuple[str, ...]]) -> RenderableType:
    """One row per family."""
    total = sum(map(len, targets_of.values()))
    table = Table("family", "targets", "names", title=f"{total} targets have an SBP rule", title_justify="left")
    for family, targets in targets_of.items():
        table.add_row(family, str(len(targets)), escape(", ".join(t.removeprefix("aten.").removesuffix(".default") for t in targets)))
    table.caption = "names without 'aten.' and '.default'; 'regista ops --model MODEL' says which of them a model uses"
    return table


def _core_table(coverage: Mapping[str, Handled]) -> RenderableType:
    """One row per way, and one per operator that is refused."""
    by_way: dict[tuple[str, str], list[str]] = {}
    for name, op in coverage.items():
        by_way.setdefault((op.how.value, op.reason), []).append(name.removeprefix("aten.").removesuffix(".default"))
    table = Table("way", "operators", "names", title=f"torch's Core ATen set has {len(coverage)} operators", title_justify="left")
    for (how, reason), names in sorted(by_way.items()):
        table.add_row(f"{how}: {escape(reason)}" if reason else how, str(len(names)), escape(", ".join(names)))
    table.caption = (
        "rule: signatures of its own; opened: into operators that have one; "
        "whole inputs: no rule, each device of its stage performs it whole (--strict refuses)"
    )
    return table


def _used_table(model: str, used: tuple[Used, ...]) -> RenderableType:
    """One row per target, then what is missing and how to add it."""
    missing = [u for u in used if u.family is None]
    ops = sum(u.count for u in used)
    roles = [role for role in Role if any(role in u.counts for u in used)]
    summary = f"{escape(model)}: {ops} ops, {len(used)} targets, {len(missing)} without a rule (whole inputs on every device)"
    table = Table("target", "family", "ops", "by role", "first in module")
    for u in used:
        by_role = ", ".join(f"{role.value} {u.counts[role]}" for role in roles if role in u.counts)
        table.add_row(escape(u.target), u.family or "[red]none: whole[/red]", str(u.count), by_role, escape(u.module))
    return Group(summary, table, *(escape(f"\n{u.way_out}") for u in missing))
