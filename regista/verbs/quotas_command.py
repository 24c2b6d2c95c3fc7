"""The verb 'quotas': give a plan the quotas of least memory at full throughput, or of most throughput within a budget, with a certificate."""

from __future__ import annotations

import argparse
import re

from rich.console import Console
from rich.table import Table

from planner.cost import AnalyticCost, load_cost
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.text import check_target
from planner.ir.units import GB, GIB, KB, KIB, MB, MIB, show_bytes, show_s
from simulator.quotas import Requoted, full_throughput, pareto, under_budget

__all__ = ["parse_bytes", "quotas"]

_UNITS = {"": 1, "B": 1, "KB": KB, "MB": MB, "GB": GB, "KIB": KIB, "MIB": MIB, "GIB": GIB}


def parse_bytes(text: str) -> int:
    """Bytes from what people write.

    Raises:
        Unsupported: no number with a known unit, or no byte at all.

    >>> parse_bytes("1.5KiB"), parse_bytes("2 kB")
    (1536, 2000)
    """
    found = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", text)
    size = float(found[1]) * _UNITS.get(found[2].upper(), 0) if found else 0.0
    if not 1 <= size < 1e18:
        raise Unsupported(f"{text!r} is no number of bytes; write for example 8GiB, 500MB or 1048576")
    return int(size)


def quotas(args: argparse.Namespace) -> dict[str, object]:
    """Read args.plan, size its quotas, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: the budget is no number of bytes, --out beside --pareto, or the plan's streams never settle.
        OutOfMemory: no live quotas fit the budget.   InvalidFile: a file cannot be read or written.
    """
    budget_bytes = parse_bytes(args.budget) if args.budget is not None else None
    if args.out is not None:
        if args.pareto:
            raise Unsupported("--pareto shows many plans, so there is no one to write; take --budget or --full-throughput with --out")
        if args.out == args.plan:
            raise InvalidFile(f"cannot write {args.out!r}: it is the plan that is read; give another name")
        check_target(args.out)
    plan = load_plan(args.plan)
    cost: CostModel = load_cost(args.cost) if args.cost else AnalyticCost(plan.cluster)
    if args.pareto:
        return _curve(args, plan, cost)
    if budget_bytes is not None:
        found = under_budget(plan, cost, budget_bytes, seconds=args.seconds)
    else:
        found = full_throughput(plan, cost, seconds=args.seconds)
    if args.out is not None:
        save_plan(found.plan, args.out)
    if not args.json:
        _show(plan, found, args.out)
    return _figures(plan, found) | {"out": args.out}


def _certificate(found: Requoted) -> str:
    """One sentence on what is proved."""
    if found.is_certified:
        least = "certified: with these stream orders no quotas need fewer bytes for this step time"
    else:
        gap = 1 - found.bound_bytes / found.after_bytes if found.after_bytes else 0.0
        least = f"not proved best: at least {show_bytes(found.bound_bytes)} are needed (gap {gap:.2%})"
    if found.bound_s:
        least += f"; with them no quotas in budget are more than {_gap(found.period_s, found.bound_s):.2%} faster"
        least += f", and with other orders none are more than {_gap(found.period_s, found.bound_any_order_s):.2%} faster"
    if found.bound_any_order_bytes < found.after_bytes:
        least += f"; other stream orders might do with less, but not with less than {show_bytes(found.bound_any_order_bytes)}"
    return least


def _gap(period_s: float, bound_s: float) -> float:
    """How much faster a step of bound_s would be."""
    return max(0.0, period_s / bound_s - 1) if bound_s > 0 else float("inf")


def _show(plan: Plan, found: Requoted, path: str | None) -> None:
    out = Console()
    if not out.is_terminal:
        out.width = max(out.width, 160)
    table = Table("regst", "bytes per block", "quota before", "after")
    for regst in found.plan.regsts:
        before = plan.regst[regst.id].quota
        if before != regst.quota:
            table.add_row(regst.id, show_bytes(plan.block_bytes(regst)), str(before), str(regst.quota))
    if table.row_count:
        out.print(table)
    summary = Table("", "before", "after", title="theory: steady state of the marked graph")
    saved = 1 - found.after_bytes / found.before_bytes if found.before_bytes else 0.0
    summary.add_row("registers, all devices", show_bytes(found.before_bytes), f"{show_bytes(found.after_bytes)} ({-saved:+.1%})")
    summary.add_row("fullest device", show_bytes(max(device_bytes(plan).values())), show_bytes(max(device_bytes(found.plan).values())))
    summary.add_row("step time", show_s(found.before_s), show_s(found.period_s))
    out.print(summary)
    out.print(_certificate(found), markup=False, highlight=False, soft_wrap=True)
    if found.orders:
        out.print(f"orders written into streams {', '.join(found.orders)}, which by their own choice would be slower", soft_wrap=True)
    if path is not None:
        out.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def _figures(plan: Plan, found: Requoted) -> dict[str, object]:
    return {
        "plan_id": found.plan.plan_id,
        "kind": "theory",
        "quotas": {r.id: r.quota for r in found.plan.regsts if r.quota != plan.regst[r.id].quota},
        "before": {"register_bytes": found.before_bytes, "step_time_s": found.before_s, "device_bytes": max(device_bytes(plan).values())},
        "after": {
            "register_bytes": found.after_bytes,
            "step_time_s": found.period_s,
            "device_bytes": max(device_bytes(found.plan).values()),
        },
        "bound_bytes": found.bound_bytes,
        "bound_any_order_bytes": found.bound_any_order_bytes,
        "bound_s": found.bound_s,
        "bound_any_order_s": found.bound_any_order_s,
        "certified": found.is_certified,
        "certificate": _certificate(found),
        "orders": list(found.orders),
        "method": found.method,
    }


def _curve(args: argparse.Namespace, plan: Plan, cost: CostModel) -> dict[str, object]:
    points = pareto(plan, cost, seconds=args.seconds)
    if not args.json:
        table = Table(
            "step time", "samples/s", "registers, all devices", "fullest device", "certified", title="theory: throughput and memory"
        )
        for point in points:
            table.add_row(
                show_s(point.period_s),
                f"{plan.batch_size / point.period_s:.1f}",
                show_bytes(point.after_bytes),
                show_bytes(max(device_bytes(point.plan).values())),
                "yes" if point.is_certified else f"at least {show_bytes(point.bound_bytes)}",
            )
        Console().print(table)
    return {"points": [_figures(plan, point) for point in points]}
