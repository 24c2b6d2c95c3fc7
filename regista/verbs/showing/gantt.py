"""The verb 'gantt': one trace, or two above each other, one row per device."""

from __future__ import annotations

import argparse

from planner.ir.errors import Unsupported
from regista.targets import check_targets
from regista.verbs.arguments import count
from regista.verbs.screen import Json, show
from regista.verbs.showing.traces import traces_of_one_plan

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="traces of one plan, simulated or measured")
    parser.add_argument("--steps", type=count, default=2, help="the last N steps (default 2)")
    parser.add_argument("--memory", action="store_true", help="live bytes per device beneath, by category, with the peak")
    parser.add_argument("--links", action="store_true", help="how busy each link is beneath")
    parser.add_argument("--streams", action="store_true", help="one row per stream of every device instead, hosts and links too")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="PNG or SVG")


def perform(args: argparse.Namespace) -> Json:
    from regista.views.pictures.gantt import check_picture, gantt
    from regista.views.pictures.schedule_gantt import schedule_gantt

    check_targets([args.out], args.traces)
    check_picture(args.out)
    if args.streams and (args.memory or args.links):
        raise Unsupported("--memory and --links stand beneath rows of devices; leave out --streams, or them")
    plan, traces = traces_of_one_plan(args.traces)
    if args.streams:
        gantt(plan, traces, args.out, steps=args.steps)
    else:
        schedule_gantt(plan, traces, args.out, steps=args.steps, memory=args.memory, links=args.links)
    show(args, f"wrote {args.out}")
    return {"out": args.out, "plan_id": plan.plan_id}
