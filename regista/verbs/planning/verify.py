"""The verb 'verify': prove that a plan is live, fits its devices, and computes its program."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from planner.ir.errors import Untrusted
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from regista.verbs.arguments import MODEL_HELP, add_plan, add_trust
from regista.verbs.screen import Json, show, status

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_trust(parser)
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"the program: {MODEL_HELP} (default: the one that the plan names)")


def perform(args: argparse.Namespace) -> Json:
    from planner.validate import validate
    from regista.programs import names_program, planned_program

    plan = load_plan(args.plan)
    proven = f"plan {plan.plan_id}: well-formed, live, and within the memory of {plan.num_ranks} devices"
    if args.model is None and not names_program(plan):
        unchecked = f"that it computes its program: it was made from a Program of Python named {plan.model!r}; give MODEL"
        return _unchecked(args, plan, proven, unchecked)
    try:
        with status(args, "tracing the program and executing the plan symbolically ..."):
            report = validate(plan, planned_program(plan, args.model))
    except Untrusted as error:
        return _unchecked(args, plan, proven, f"that it computes its program: {error}, or give MODEL")
    show(args, proven, str(report))
    return {"plan_id": plan.plan_id, "computes_program": True} | asdict(report)


def _unchecked(args: argparse.Namespace, plan: Plan, proven: str, unchecked: str) -> Json:
    show(args, proven, f"not checked: {unchecked}")
    return {"plan_id": plan.plan_id, "computes_program": None, "not_checked": [unchecked]}
