"""The verb 'export': traces in the formats of other tools."""

from __future__ import annotations

import argparse

from planner.ir.errors import Mismatch
from regista.targets import check_targets
from regista.verbs.screen import Json, show
from regista.verbs.showing.traces import traces_of_one_plan

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="traces of one plan, simulated or measured; kineto: one")
    parser.add_argument(
        "--format",
        default="perfetto",
        choices=["perfetto", "kineto"],
        help="perfetto: one file for ui.perfetto.dev (default); kineto: a folder with one file per rank, for Holistic Trace Analysis",
    )
    parser.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="JSON; open it at ui.perfetto.dev or chrome://tracing; kineto: the folder"
    )


def perform(args: argparse.Namespace) -> Json:
    return _kineto(args) if args.format == "kineto" else _perfetto(args)


def _perfetto(args: argparse.Namespace) -> Json:
    from regista.views.exports.perfetto import save_perfetto

    check_targets([args.out], args.traces)
    plan, traces = traces_of_one_plan(args.traces)
    save_perfetto(plan, traces, args.out)
    show(args, f"wrote {args.out}; open it at ui.perfetto.dev or chrome://tracing")
    return {"out": args.out, "plan_id": plan.plan_id, "format": args.format}


def _kineto(args: argparse.Namespace) -> Json:
    from regista.views.exports.kineto import save_kineto

    plan, traces = traces_of_one_plan(args.traces)
    if len(traces) != 1:
        raise Mismatch(f"kineto files are profiles of one run; got {len(traces)} traces, export each into a folder of its own")
    files = [str(path) for path in save_kineto(plan, traces[0], args.out)]
    show(args, f"wrote {len(files)} files into {args.out}; open them with hta.trace_analysis.TraceAnalysis(trace_dir={args.out!r})")
    return {"out": args.out, "plan_id": plan.plan_id, "format": args.format, "files": files}
