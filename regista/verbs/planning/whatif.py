"""The verb 'whatif': the same program on a changed cluster, with the price of the old decisions there."""

from __future__ import annotations

import argparse

from planner.ir.files import load_plan, save_plan
from regista.origin import record_like
from regista.targets import check_targets
from regista.verbs.arguments import add_plan, add_trust
from regista.verbs.screen import Json, show, status
from regista.verbs.surroundings import surroundings

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_trust(parser)
    parser.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="KEY=VALUE",
        help="a key of the cluster's TOML, for example cluster.links.nic.bandwidth_GBps=50; may be repeated",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="the new plan (JSON)")


def perform(args: argparse.Namespace) -> Json:
    from regista.analysis.whatif import whatif
    from regista.views.tables.whatif import show_whatif, whatif_json

    check_targets([args.out], [args.plan])
    plan = load_plan(args.plan)
    with status(args, "planning anew ..."):
        outcome = whatif(plan, args.set, memory=surroundings().memory_of(plan.model))
    if args.out:
        save_plan(outcome.plan, args.out)
        record_like(plan, outcome.plan)
    show(args, show_whatif(outcome), *([f"wrote {args.out}"] if args.out else []))
    return whatif_json(outcome)
