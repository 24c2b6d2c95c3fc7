"""The verb 'quotas': give a plan the quotas of least memory at full throughput, or of most throughput within a budget, with a certificate."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from planner.cost import AnalyticCost, load_prices
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.units import GB, GIB, KB, KIB, MB, MIB, show_bytes, show_s
from regista.origin import record_like
from regista.targets import check_targets
from regista.verbs.arguments import add_cost, add_plan, positive
from regista.verbs.screen import Json, show

if TYPE_CHECKING:
    from simulator.quotas import SizedPlan

__all__ = ["add_arguments", "certificate", "parse_bytes", "perform"]

_UNITS = {"": 1, "B": 1, "KB": KB, "MB": MB, "GB": GB, "KIB": KIB, "MIB": MIB, "GIB": GIB}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--full-throughput", action="store_true", help="least register memory that keeps the step time of unlimited quotas")
    goal.add_argument("--budget", metavar="SIZE", help="most throughput with at most this much memory per device, for example 8GiB")
    goal.add_argument("--pareto", action="store_true", help="show throughput against register memory")
    add_cost(parser)
    parser.add_argument("--seconds", type=positive, default=20.0, metavar="S", help="search for about this long (default 20)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the plan with the new quotas (JSON)")


def parse_bytes(text: str) -> int:
    """Bytes from what people write.

    Raises:
        Unsupported: no number with a known unit, or no byte at all.

    >>> parse_bytes("1.5KiB"), parse_bytes("2 kB")
    (1536, 2000)
    """
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", text)
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if not 1 <= size < 1e18:
        raise Unsupported(f"{text!r} is no number of bytes; write for example 8GiB, 500MB or 1048576")
    return int(size)


def perform(args: argparse.Namespace) -> Json:
    """Read args.plan, size its quotas, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: the budget is no number of bytes, --out beside --pareto, or the plan's streams never settle.
        OutOfMemory: no live quotas fit the budget.   InvalidFile: a file cannot be read or written.
    """
    from simulator.quotas import full_throughput, under_budget

    budget_bytes = parse_bytes(args.budget) if args.budget is not None else None
    if args.out is not None and args.pareto:
        raise Unsupported("--pareto shows many plans, so there is no one to write; take --budget or --full-throughput with --out")
    check_targets([args.out], [args.plan, args.cost])
    plan = load_plan(args.plan)
    cost: CostModel = load_prices(args.cost, plan.cluster) if args.cost else AnalyticCost(plan.cluster)
    if args.pareto:
        return _curve(args, plan, cost)
    if budget_bytes is not None:
        sized_plan = under_budget(plan, cost, budget_bytes, seconds=args.seconds)
    else:
        sized_plan = full_throughput(plan, cost, seconds=args.seconds)
    if args.out is not None:
        save_plan(sized_plan.plan, args.out)
        record_like(plan, sized_plan.plan)
    show(args, *_tables(plan, sized_plan), *([f"wrote {args.out}"] if args.out is not None else []))
    return _figures(plan, sized_plan) | {"out": args.out}


def certificate(sized_plan: SizedPlan) -> str:
    """One sentence on what is proved."""
    if sized_plan.is_certified:
        # What is left out: what the default engine of simulate plays and a theory of constant durations cannot, and ranks that differ.
        what = "certified, but for what is said last" if sized_plan.left_out else "certified"
        text = f"{what}: with these stream orders no quotas need fewer bytes for this step time"
    else:
        gap = 1 - sized_plan.bound_bytes / sized_plan.after_bytes if sized_plan.after_bytes else 0.0
        text = f"not proved best: at least {show_bytes(sized_plan.bound_bytes)} are needed (gap {gap:.2%})"
    if sized_plan.bound_s:
        text += f"; with them no quotas in budget are more than {_gap(sized_plan.period_s, sized_plan.bound_s):.2%} faster"
        text += f", and with other orders none are more than {_gap(sized_plan.period_s, sized_plan.bound_any_order_s):.2%} faster"
    if sized_plan.bound_any_order_bytes < sized_plan.after_bytes:
        text += f"; other stream orders might do with less, but not with less than {show_bytes(sized_plan.bound_any_order_bytes)}"
    if sized_plan.left_out:
        text += f"; {sized_plan.left_out}"
    return text


def _gap(period_s: float, bound_s: float) -> float:
    """How much faster a step of bound_s would be."""
    return max(0.0, period_s / bound_s - 1) if bound_s > 0 else float("inf")


def _tables(plan: Plan, sized_plan: SizedPlan) -> Iterator[RenderableType]:
    summary = Table("", "before", "after", title="theory: steady state of the marked graph")
    saved = 1 - sized_plan.after_bytes / sized_plan.before_bytes if sized_plan.before_bytes else 0.0
    summary.add_row("registers, all devices", show_bytes(sized_plan.before_bytes), f"{show_bytes(sized_plan.after_bytes)} ({-saved:+.1%})")
    summary.add_row("fullest device", show_bytes(_fullest_bytes(plan)), show_bytes(_fullest_bytes(sized_plan.plan)))
    summary.add_row("step time", show_s(sized_plan.before_s), show_s(sized_plan.period_s))
    yield summary
    yield certificate(sized_plan)
    if sized_plan.orders:
        yield f"orders written into streams {', '.join(sized_plan.orders)}, which by their own choice would be slower"
    table = Table("regst", "bytes per block", "quota before", "after", title="quotas that changed")
    for regst in sized_plan.plan.regsts:
        before = plan.regst[regst.id].quota
        if before != regst.quota:
            table.add_row(regst.id, show_bytes(plan.block_bytes(regst)), str(before), str(regst.quota))
    if table.row_count:
        yield table


def _fullest_bytes(plan: Plan) -> int:
    return max(device_bytes(plan).values())


def _figures(plan: Plan, sized_plan: SizedPlan) -> Json:
    return {
        "plan_id": sized_plan.plan.plan_id,
        "kind": "theory",
        "quotas": {r.id: r.quota for r in sized_plan.plan.regsts if r.quota != plan.regst[r.id].quota},
        "before": {"register_bytes": sized_plan.before_bytes, "step_time_s": sized_plan.before_s, "device_bytes": _fullest_bytes(plan)},
        "after": {
            "register_bytes": sized_plan.after_bytes,
            "step_time_s": sized_plan.period_s,
            "device_bytes": _fullest_bytes(sized_plan.plan),
        },
        "bound_bytes": sized_plan.bound_bytes,
        "bound_any_order_bytes": sized_plan.bound_any_order_bytes,
        "bound_s": sized_plan.bound_s,
        "bound_any_order_s": sized_plan.bound_any_order_s,
        "certified": sized_plan.is_certified,
        "certificate": certificate(sized_plan),
        "left_out": sized_plan.left_out,
        "orders": list(sized_plan.orders),
        "method": sized_plan.method,
    }


def _curve(args: argparse.Namespace, plan: Plan, cost: CostModel) -> Json:
    from simulator.quotas import pareto

    began_s = perf_counter()
    points = pareto(plan, cost, seconds=args.seconds)
    cut_short = perf_counter() - began_s > args.seconds
    table = Table("step time", "samples/s", "registers, all devices", "fullest device", "certified", title="theory: throughput and memory")
    for point in points:
        table.add_row(
            show_s(point.period_s),
            f"{plan.batch_size / point.period_s:.1f}",
            show_bytes(point.after_bytes),
            show_bytes(_fullest_bytes(point.plan)),
            "yes" if point.is_certified else f"at least {show_bytes(point.bound_bytes)}",
        )
    notes = [point.left_out for point in points if point.left_out]
    if cut_short:
        notes.append(
            f"the {args.seconds:g} s of --seconds were over before all points were tried; more seconds may show more and better ones"
        )
    show(args, table, *dict.fromkeys(notes))
    return {"points": [_figures(plan, point) for point in points], "cut_short": cut_short}
