"""The verb 'explain': a plan in words, what other layouts would cost, where its time goes and what fills its devices."""

from __future__ import annotations

import argparse

from planner.ir.files import load_plan
from regista.verbs.arguments import add_plan, add_trust, count, positive
from regista.verbs.planning.plan import plan_json
from regista.verbs.screen import Json, show, status

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_trust(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--op", metavar="PATTERN", help="price the layouts of ops (by id or target) and states whose name matches")
    which.add_argument("--module", metavar="PATTERN", help="price those of a module's states and forward ops, what is beneath it included")
    parser.add_argument(
        "--actors", action="store_true", help="also all streams, actors and registers with their quotas, and the layout of every state"
    )
    parser.add_argument("--top", type=count, default=12, metavar="N", help="price this many, the largest first (default 12)")
    parser.add_argument("--seconds", type=positive, default=30.0, metavar="S", help="price alternatives for at most this long (default 30)")


def perform(args: argparse.Namespace) -> Json:
    from regista.analysis.answer import answer
    from regista.analysis.explain import Wanted, explain
    from regista.trust.interval import objective_interval
    from regista.views.tables.answer import show_facts
    from regista.views.tables.explanation import explanation_json, show_explanation
    from regista.views.tables.show import show_layouts, show_plan

    plan = load_plan(args.plan)
    wanted = Wanted(op=args.op, module=args.module, most=args.top, seconds=args.seconds)
    with status(args, "tracing and pricing alternatives ..."):
        explanation = explain(plan, wanted)
    facts = show_facts(answer(plan), objective_interval(plan), details=args.actors)
    if args.actors:  # which asks for all of them
        args.full = True
    show(args, facts, show_explanation(explanation), *((show_plan(plan), show_layouts(plan)) if args.actors else ()))
    return plan_json(plan) | explanation_json(explanation)
