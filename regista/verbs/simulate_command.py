"""The verb 'simulate': one screen on a plan, and its trace where one is asked for.  Needs no torch."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from dataclasses import replace

from rich.console import Console

from planner.cost import AnalyticCost, load_cost
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.files import load_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.text import check_target
from planner.ir.traces.trace import check_trace
from regista.analysis.outlook import look
from regista.views.tables.show_simulation import COLUMNS, outlook_json, show_outlook
from simulator import Engine
from simulator import simulate as play
from simulator.analysis.replay import message_times
from simulator.noise import Noise

__all__ = ["simulate"]


def simulate(args: argparse.Namespace) -> dict[str, object]:
    """Read args.plan, simulate it, show the screen, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: --runs or --seed without --noise; otherwise as regista.analysis.outlook.look.   InvalidFile: a file cannot be read or written.
    """
    if args.noise is None and (args.runs is not None or args.seed is not None):
        raise Unsupported("--runs and --seed belong to --noise, which is not given; add --noise JITTER or leave them out")
    _check_target(args)
    plan = load_plan(args.plan)
    cost: CostModel = load_cost(args.cost) if args.cost else AnalyticCost(plan.cluster)
    noise = None if args.noise is None else Noise(jitter=args.noise, seed=args.seed or 0)
    err = Console(stderr=True)
    with nullcontext() if args.json else err.status("simulating ...") as status:
        say = (lambda _: None) if status is None else status.update
        found = look(
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
    if not args.json:
        out = Console()
        out.width = min(out.width, COLUMNS) if out.is_terminal else COLUMNS
        out.print(show_outlook(found))
    return outlook_json(found)


def _save_trace(plan: Plan, cost: CostModel, args: argparse.Namespace) -> None:
    """Every act of every rank, checked against the six laws."""
    trace = play(plan, cost, steps=args.steps, engine=Engine(args.engine))
    trace = replace(trace, message_s=message_times(plan, cost.message_s))
    check_trace(plan, trace)
    save_trace(plan, trace, args.out)


def _check_target(args: argparse.Namespace) -> None:
    """Refuse a bad --out before the work."""
    if args.out is None:
        return
    if os.path.realpath(args.out) in {os.path.realpath(path) for path in (args.plan, args.cost) if path is not None}:
        raise InvalidFile(f"cannot write {args.out!r}: the same command reads or writes that file for something else; give another name")
    check_target(args.out)
