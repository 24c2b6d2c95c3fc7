"""The verb 'loading': a plan with actors that read, prepare and copy its data."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Plan
from planner.ir.units import show_bytes
from regista.data import loader, with_data
from regista.targets import check_targets

__all__ = ["loading"]

Json = dict[str, object]


def loading(args: argparse.Namespace) -> Json:
    """Read args.plan, write args.out; returns the figures for --json.

    Raises:
        InvalidFile, InvalidProgram, InvalidPlan: see regista.data.with_data.
    """
    check_targets([args.out], [args.plan])
    plan = load_plan(args.plan)
    found = with_data(plan, args.data, load_quota=args.load_quota, copy=True if args.copy else None)
    save_plan(found, args.out)
    samples = loader(found, args.data).reader.num_samples
    if not args.json:
        out = Console()
        out.print(_chain(found))
        out.print(f"{samples} samples, {samples / found.batch_size:g} steps per epoch", markup=False)
        out.print(f"wrote {args.out}", markup=False, soft_wrap=True)
    return {
        "plan_id": found.plan_id,
        "out": args.out,
        "samples": samples,
        "steps_per_epoch": samples / found.batch_size,
        "tasks": [task.id for task in found.tasks if task.kind.is_loading],
        "regsts": {regst.id: regst.quota for regst in found.regsts if _is_loading(found, regst.producer)},
    }


def _is_loading(plan: Plan, producer: str | None) -> bool:
    return producer is not None and plan.task[producer].kind.is_loading


def _chain(plan: Plan) -> Table:
    table = Table("actor", "kind", "stream", "fills", "blocks", "bytes of a block")
    for task in plan.tasks:
        for port in task.produces if task.kind.is_loading else ():
            regst = plan.regst[port.regst]
            about = (escape(task.id), task.kind.value, escape(task.stream), escape(regst.id))
            table.add_row(*about, str(regst.quota), show_bytes(plan.block_bytes(regst)))
    return table
