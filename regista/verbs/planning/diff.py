"""The verb 'diff': what differs between two plans."""

from __future__ import annotations

import argparse

from planner.ir.files import load_plan
from regista.verbs.arguments import PLAN_HELP, add_trust
from regista.verbs.screen import Json, show, status

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=PLAN_HELP)
    parser.add_argument("b", metavar="B", help="another one")
    add_trust(parser)


def perform(args: argparse.Namespace) -> Json:
    from regista.analysis.diff import diff
    from regista.views.tables.difference import difference_json, show_difference

    first, second = load_plan(args.a), load_plan(args.b)
    with status(args, "comparing ..."):
        difference = diff(first, second)
    show(args, show_difference(difference))
    return difference_json(difference)
