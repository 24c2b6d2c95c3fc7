"""The verb 'timeline': one HTML file for the browser that zooms."""

from __future__ import annotations

import argparse

from regista.targets import check_targets
from regista.verbs.arguments import count
from regista.verbs.screen import Json, show
from regista.verbs.showing.traces import traces_of_one_plan

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="one trace, or a simulated and a measured one of the same plan")
    parser.add_argument("--steps", type=count, default=None, help="the last N steps (default: as many as 20,000 acts allow)")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="HTML; it needs no network")


def perform(args: argparse.Namespace) -> Json:
    from regista.views.timeline import save_timeline

    check_targets([args.out], args.traces)
    plan, traces = traces_of_one_plan(args.traces)
    save_timeline(plan, traces, args.out, steps=args.steps)
    show(args, f"wrote {args.out}; open it in a browser")
    return {"out": args.out, "plan_id": plan.plan_id}
