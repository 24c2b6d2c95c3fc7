"""The verb 'sensitivity': which constants of the cluster a plan's step, and its choice, depend on."""

from __future__ import annotations

import argparse

from planner.ir.errors import InvalidFile
from planner.ir.files import load_plan
from planner.ir.text import save_text
from regista.targets import check_targets
from regista.verbs.arguments import CLUSTER_HELP, add_plan, add_spread, add_trust, count
from regista.verbs.screen import Json, show, status, status_text

__all__ = ["add_arguments", "perform"]

_PICTURES = (".png", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_trust(parser)
    parser.add_argument("--cluster", metavar="C", help=f"another cluster of as many devices (default: the plan's own): {CLUSTER_HELP}")
    add_spread(parser)
    parser.add_argument("--replan", action="store_true", help="also search anew at both ends of every constant: does the choice change?")
    parser.add_argument("--steps", type=count, default=4, help="steps to simulate (default 4)")
    parser.add_argument("-o", "--out", metavar="FILE", help="a CSV with one row per constant")
    parser.add_argument("--picture", metavar="FILE", help="the tornado (.png or .svg)")


def perform(args: argparse.Namespace) -> Json:
    """Simulate args.plan at both ends of every constant, show the table, write what is asked for; returns the figures for --json.

    Raises:
        Mismatch: the cluster has another number of devices.   Unsupported: a spread that is none.   InvalidFile: a file.
    """
    from regista.analysis.sensitivity import sensitivity
    from regista.trust.constants import constants_of, parse_spreads
    from regista.views.tables.sensitivity import sensitivity_csv, sensitivity_json, show_sensitivity

    check_targets([args.out, args.picture], [args.plan, args.cluster])
    if args.picture is not None and not str(args.picture).endswith(_PICTURES):
        raise InvalidFile(f"--picture {args.picture!r}: a picture is a {' or '.join(_PICTURES)} file")
    spreads = parse_spreads(args.spread)
    plan = load_plan(args.plan)
    cluster = plan.cluster
    if args.cluster is not None:
        from regista.clusters import resolve_cluster

        cluster = resolve_cluster(args.cluster)
    constants = constants_of(cluster, spreads)
    choose = None
    with status(args, "simulating ...") as line:
        say = status_text(line)
        if args.replan:
            from regista.analysis.sensitivity.choice import chooser

            say("tracing the program ...")
            choose = chooser(plan)
        study = sensitivity(plan, constants, cluster=cluster, steps=args.steps, choose=choose, on_progress=say)
    if args.out:
        save_text(args.out, sensitivity_csv(study))
    if args.picture:
        from regista.views.pictures.tornado import draw_tornado

        draw_tornado(study, args.picture)
    show(args, show_sensitivity(study), *(f"wrote {path}" for path in (args.out, args.picture) if path))
    return sensitivity_json(study)
