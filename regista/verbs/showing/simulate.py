"""The verb 'simulate': one screen on a plan, and its trace where one is asked for.  It needs no torch."""

from __future__ import annotations

import argparse
from dataclasses import replace

from planner.cost import AnalyticCost, load_prices
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import check_trace
from regista.targets import check_targets
from regista.verbs.arguments import add_cost, add_plan, count, positive
from regista.verbs.screen import Json, show, status, status_text

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_cost(parser)
    parser.add_argument("--steps", type=count, default=4, help="steps to simulate (default 4)")
    parser.add_argument(
        "--engine", default="auto", choices=["auto", "simpy", "compiled"], help="who plays: both give one trace (default: by size)"
    )
    parser.add_argument("--noise", type=positive, metavar="JITTER", help="also an interval: sigma of the logarithm of compute acts' times")
    parser.add_argument("--runs", type=count, metavar="N", help="runs with noise (default 20)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the noise (default 0)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON)")


def perform(args: argparse.Namespace) -> Json:
    """Read args.plan, simulate it, show the screen, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: --runs or --seed without --noise; otherwise as regista.analysis.outlook.look.   InvalidFile: a file cannot be read or written.
    """
    from regista.analysis.outlook import look
    from regista.views.tables.simulation import outlook_json, show_outlook
    from simulator import Engine
    from simulator.noise import Noise

    if args.noise is None and (args.runs is not None or args.seed is not None):
        raise Unsupported("--runs and --seed belong to --noise, which is not given; add --noise JITTER or leave them out")
    check_targets([args.out], [args.plan, args.cost])
    plan = load_plan(args.plan)
    cost: CostModel = load_prices(args.cost, plan.cluster) if args.cost else AnalyticCost(plan.cluster)
    noise = None if args.noise is None else Noise(jitter=args.noise, seed=args.seed or 0)
    with status(args, "simulating ...") as line:
        say = status_text(line)
        outlook = look(
            plan,
            cost,
            steps=args.steps,
            engine=Engine(args.engine),
            noise=noise,
            runs=20 if args.runs is None else args.runs,
            on_progress=say,
        )
        if args.out is not None:
            say("writing the trace ...")
            _save_trace(plan, cost, args)
    show(args, show_outlook(outlook), *([f"wrote {args.out}"] if args.out else []))
    return outlook_json(outlook)


def _save_trace(plan: Plan, cost: CostModel, args: argparse.Namespace) -> None:
    """Every act of every rank, checked against the six laws."""
    from regista.trust.interval import prices_of
    from simulator import Engine, simulate
    from simulator.analysis.replay import message_times

    trace = simulate(plan, cost, steps=args.steps, engine=Engine(args.engine))
    trace = replace(trace, message_s=message_times(plan, cost.message_s), about={**trace.about, "prices": prices_of(cost).value})
    check_trace(plan, trace)
    save_trace(plan, trace, args.out)
