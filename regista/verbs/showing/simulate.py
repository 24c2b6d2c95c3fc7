"""The verb 'simulate': one screen on a plan, and its trace where one is asked for.  It needs no torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cost import AnalyticCost, load_prices
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import check_trace
from regista.targets import check_targets
from regista.verbs.arguments import add_cost, add_plan, add_routing, count, positive, routing_of
from regista.verbs.screen import Json, show, status, status_text

if TYPE_CHECKING:
    from planner.cost.routing import ExpertLoad
    from simulator.routed import RoutedSteps

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_cost(parser)
    parser.add_argument("--steps", type=count, default=4, help="steps to simulate (default 4)")
    parser.add_argument(
        "--engine", default="auto", choices=["auto", "simpy", "compiled"], help="who plays: both give one trace (default: by size)"
    )
    parser.add_argument("--noise", type=positive, metavar="JITTER", help="also an interval: sigma of the logarithm of compute acts' times")
    parser.add_argument("--runs", type=count, metavar="N", help="runs with noise, or with drawn loads (default 20)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the noise, or of the routing's draws (default 0)")
    add_routing(parser, "each step draws the load of every expert; the plan must have been made with --routing")
    parser.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON)")


def perform(args: argparse.Namespace) -> Json:
    """Read args.plan, simulate it, show the screen, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: --runs or --seed without --noise; otherwise as regista.analysis.outlook.look.   InvalidFile: a file cannot be read or written.
    """
    from regista.analysis.outlook import look
    from regista.views.tables.simulation import outlook_json, routed_json, routed_text, show_outlook
    from simulator import Engine
    from simulator.noise import Noise

    load = routing_of(args)
    if args.noise is None and load is None and (args.runs is not None or args.seed is not None):
        raise Unsupported(
            "--runs and --seed belong to --noise, which is not given, or to --routing; add --noise JITTER or --routing R, or leave them out"
        )
    if args.noise is not None and load is not None:
        raise Unsupported(f"--noise {args.noise:g} with --routing {load.routing}; each is played by itself, leave one of them out")
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
        routed = None if load is None else _routed(plan, cost, replace(load, seed=args.seed or 0), args, say)
        if args.out is not None:
            say("writing the trace ...")
            _save_trace(plan, cost, args, None if routed is None else routed.load)
    told = () if routed is None else (routed_text(routed),)
    show(args, show_outlook(outlook), *told, *([f"wrote {args.out}"] if args.out else []))
    return outlook_json(outlook) | ({} if routed is None else {"routed": routed_json(routed)})


def _routed(plan: Plan, cost: CostModel, load: ExpertLoad, args: argparse.Namespace, say: Callable[[str], None]) -> RoutedSteps:
    from regista.analysis.outlook import check_noise
    from simulator.routed import simulate_routed

    runs = 20 if args.runs is None else args.runs
    check_noise(plan, args.steps, runs)
    return simulate_routed(
        plan, cost, load, runs=runs, steps=args.steps, on_run=lambda done: say(f"{done} of {runs} runs with drawn loads ...")
    )


def _save_trace(plan: Plan, cost: CostModel, args: argparse.Namespace, load: ExpertLoad | None) -> None:
    """Every act of every rank, checked against the six laws; with a routing, of the first run's draws."""
    from regista.trust.interval import prices_of
    from simulator import Engine, simulate
    from simulator.analysis.replay import message_times
    from simulator.routed import RoutedLoads

    factor = None if load is None else RoutedLoads(plan, load).factor(plan)
    trace = simulate(plan, cost, steps=args.steps, engine=Engine(args.engine), factor=factor)
    drawn = {} if load is None else {"load": f"{load}, seed {load.seed}, run 0"}
    told = {**trace.about, "prices": prices_of(cost).value, **drawn}
    trace = replace(trace, message_s=message_times(plan, cost.message_s), about=told)
    check_trace(plan, trace)
    save_trace(plan, trace, args.out)
