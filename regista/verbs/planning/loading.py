"""The verb 'loading': a plan with actors that read, prepare and copy its data."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Plan
from planner.ir.units import show_bytes
from regista.origin import record_like
from regista.targets import check_targets
from regista.verbs.arguments import DATA_HELP, add_plan, count
from regista.verbs.screen import Json, show

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument("--data", required=True, metavar="DATA", help=DATA_HELP)
    parser.add_argument("--load-quota", type=count, default=2, metavar="N", help="blocks of each regst of the chain (default 2)")
    parser.add_argument("--copy", action="store_true", help="with a copy to the device even where it is a CPU")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the plan with the chain (JSON)")


def perform(args: argparse.Namespace) -> Json:
    """Read args.plan, write args.out; returns the figures for --json.

    Raises:
        InvalidFile, InvalidProgram, InvalidPlan: see regista.data.with_data.
    """
    from regista.data import loader, with_data

    check_targets([args.out], [args.plan])
    plan = load_plan(args.plan)
    extended = with_data(plan, args.data, load_quota=args.load_quota, copy=True if args.copy else None)
    save_plan(extended, args.out)
    record_like(plan, extended)
    samples = loader(extended, args.data).reader.num_samples
    epoch = f"{samples} samples, {samples / extended.batch_size:g} steps per epoch"
    show(args, _chain(extended), epoch, f"wrote {args.out}")
    return {
        "plan_id": extended.plan_id,
        "out": args.out,
        "samples": samples,
        "steps_per_epoch": samples / extended.batch_size,
        "tasks": [task.id for task in extended.tasks if task.kind.is_loading],
        "regsts": {regst.id: regst.quota for regst in extended.regsts if _is_loading(extended, regst.producer)},
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
