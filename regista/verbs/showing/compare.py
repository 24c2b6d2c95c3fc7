"""The verb 'compare': a simulated and a measured trace of one plan, laid over each other."""

from __future__ import annotations

import argparse

from planner.ir.errors import Mismatch
from planner.ir.text import canonical, save_text
from planner.ir.traces.trace import Source
from regista.targets import check_targets
from regista.verbs.screen import Json, show
from regista.verbs.showing.traces import load_steps

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sim", metavar="SIM", help="the trace of 'regista simulate'")
    parser.add_argument("run", metavar="RUN", help="the trace of 'regista run', of the same plan")
    parser.add_argument("--warmup", type=int, default=None, metavar="N", help="steps of the run to leave out (default: 3 or a quarter)")
    parser.add_argument("--gantt", metavar="FILE", help="draw predicted above measured (PNG or SVG)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the comparison (JSON)")


def perform(args: argparse.Namespace) -> Json:
    from regista.analysis.comparison import compare
    from regista.views.pictures.gantt import check_picture, gantt
    from regista.views.tables.show import show_comparison

    check_targets([args.out, args.gantt], [args.sim, args.run])
    if args.gantt:
        check_picture(args.gantt)
    sim_plan, sim = load_steps(args.sim)
    run_plan, run = load_steps(args.run)
    if (sim.source, run.source) == (Source.SIM, Source.RUN) and sim_plan.plan_id != run_plan.plan_id:
        raise Mismatch(
            f"{args.sim} is of plan {sim_plan.plan_id}, {args.run} of plan {run_plan.plan_id}; simulate and run the same plan file"
        )
    comparison = compare(sim_plan, sim, run, warmup=args.warmup)
    if args.gantt:
        gantt(sim_plan, (sim, run), args.gantt)
    if args.out:
        save_text(args.out, canonical(comparison.to_json()) + "\n")
    show(args, show_comparison(comparison))
    return comparison.to_json()
