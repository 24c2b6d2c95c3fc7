"""The verb 'report': pages for the browser of one comparison, or of a whole folder of results."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.ir.errors import InvalidFile, Mismatch
from regista.targets import check_targets
from regista.verbs.screen import Json, show, status
from regista.verbs.showing.traces import load_steps

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="WHAT", help="the traces of 'simulate' and of 'run', in this order; or one folder of results"
    )
    parser.add_argument("--warmup", type=int, default=None, metavar="N", help="steps of the run to leave out (default: 3 or a quarter)")
    parser.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="HTML; it needs no network.  Of a folder: the folder of the pages"
    )


def perform(args: argparse.Namespace) -> Json:
    """Two traces: one page args.out.  A folder: pages and an index in the folder args.out.  Returns the figures for --json.

    Raises:
        Mismatch: not a simulated and a measured trace of one Plan.   InvalidFile: a file cannot be read or written.
    """
    if len(args.what) == 1:
        return _folder(args)
    if len(args.what) != 2:
        raise Mismatch(f"report takes a simulated and a measured trace, or one folder; got {len(args.what)} names")
    return _comparison(args)


def _comparison(args: argparse.Namespace) -> Json:
    from regista.report import save_comparison

    check_targets([args.out], args.what)
    (plan, sim), (other, run) = (load_steps(path) for path in args.what)
    if plan.plan_id != other.plan_id:
        raise Mismatch(
            f"{args.what[0]} is of plan {plan.plan_id}, {args.what[1]} of plan {other.plan_id}; simulate and run the same plan file"
        )
    with status(args, "comparing and drawing ..."):
        findings = save_comparison(plan, sim, run, args.out, warmup=args.warmup)
    show(args, f"wrote {args.out}; open it in a browser")
    return {
        "out": args.out,
        "comparison": findings.comparison.to_json(),
        "bubble": {"predicted": findings.bubble.predicted, "measured": findings.bubble.measured},
        "what_if": [
            {"change": c.what, "sim_step_s": c.step_s, "sim_register_bytes": c.register_bytes, "why_not": c.why_not}
            for c in findings.changes
        ],
    }


def _folder(args: argparse.Namespace) -> Json:
    from regista.report import save_folder

    if not Path(args.what[0]).is_dir():
        raise InvalidFile(f"{args.what[0]} is no folder; give a simulated and a measured trace, or a folder of results")
    if Path(args.out).is_file():
        raise InvalidFile(f"cannot write pages into {args.out!r}, which is a file; give a folder")
    if args.warmup is not None:
        raise Mismatch(f"--warmup {args.warmup} belongs to a pair of traces; leave it out for a folder")
    with status(args, "reading and drawing ..."):
        written = save_folder(args.what[0], args.out)
    pages = len(written.comparisons) + len(written.tables)
    show(args, f"wrote {args.out}/{written.index}, {written.claims} cards, and {pages} pages beside it")
    return {
        "out": args.out,
        "index": written.index,
        "comparisons": list(written.comparisons),
        "tables": list(written.tables),
        "claims": written.claims,
    }
