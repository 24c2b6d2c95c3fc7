"""The verb 'report': pages for the browser of one comparison, or of a whole folder of results."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.files import load_trace
from regista.report import save_comparison, save_folder
from regista.targets import check_targets

__all__ = ["report"]


def report(args: argparse.Namespace) -> dict[str, object]:
    """Two traces: one page args.out.  A folder: pages and an index in the folder args.out.  Returns the figures for --json.

    Raises:
        Mismatch: not a simulated and a measured trace of one Plan.   InvalidFile: a file cannot be read or written.
    """
    err, out = Console(stderr=True), Console(soft_wrap=True)
    if len(args.what) == 1:
        return _folder(args, err, out)
    if len(args.what) != 2:
        raise Mismatch(f"report takes a simulated and a measured trace, or one folder; got {len(args.what)} names")
    check_targets([args.out], args.what)
    (plan, sim), (other, run) = (load_trace(path) for path in args.what)
    if plan.plan_id != other.plan_id:
        raise Mismatch(
            f"{args.what[0]} is of plan {plan.plan_id}, {args.what[1]} of plan {other.plan_id}; simulate and run the same plan file"
        )
    if args.json:
        found = save_comparison(plan, sim, run, args.out, warmup=args.warmup)
    else:
        with err.status("comparing and drawing ..."):
            found = save_comparison(plan, sim, run, args.out, warmup=args.warmup)
        out.print(f"wrote {args.out}; open it in a browser", markup=False, highlight=False)
    return {
        "out": args.out,
        "comparison": found.comparison.to_json(),
        "bubble": {"predicted": found.bubble.predicted, "measured": found.bubble.measured},
        "what_if": [
            {"change": c.what, "sim_step_s": c.step_s, "sim_register_bytes": c.register_bytes, "why_not": c.why_not} for c in found.changes
        ],
    }


def _folder(args: argparse.Namespace, err: Console, out: Console) -> dict[str, object]:
    if not Path(args.what[0]).is_dir():
        raise InvalidFile(f"{args.what[0]} is no folder; give a simulated and a measured trace, or a folder of results")
    if Path(args.out).is_file():
        raise InvalidFile(f"cannot write pages into {args.out!r}, which is a file; give a folder")
    if args.warmup is not None:
        raise Mismatch(f"--warmup {args.warmup} belongs to a pair of traces; leave it out for a folder")
    if args.json:
        written = save_folder(args.what[0], args.out)
    else:
        with err.status("reading and drawing ..."):
            written = save_folder(args.what[0], args.out)
        pages = len(written.comparisons) + len(written.tables)
        out.print(f"wrote {args.out}/{written.index}, {written.claims} cards, and {pages} pages beside it", markup=False, highlight=False)
    return {
        "out": args.out,
        "index": written.index,
        "comparisons": list(written.comparisons),
        "tables": list(written.tables),
        "claims": written.claims,
    }
