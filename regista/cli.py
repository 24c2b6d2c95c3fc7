"""The command line.  Every verb has --json for machines; every refusal is one message and exit code 2."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence

from planner.ir.errors import RegistaError

__all__ = ["build_parser", "main"]

_MODEL_HELP = "zoo:NAME?key=value&..., file.py:factory (a function without arguments that returns a regista.Program), or a .pt2"
_CLUSTER_HELP = "local:N (N CPU devices of this machine) or a cluster TOML"


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to fix (the rest is searched)")
    group.add_argument("--stages", type=int, default=1, metavar="P", help="pipeline stages (default 1)")
    group.add_argument("--mesh", metavar="A,B", help="device mesh inside each stage, for example 2,2 (default: one axis)")
    group.add_argument("--micro-batches", type=int, default=1, metavar="M", help="micro-batches per step (default 1)")
    group.add_argument(
        "--cut", action="append", default=[], metavar="MODULE", help="module path that begins the next stage (default: even flop)"
    )
    group.add_argument("--pin", action="append", default=[], metavar="PATTERN=SBP", help="layout of parameters, states or inputs by name")
    group.add_argument("--schedule", default="1f1b", choices=["1f1b", "gpipe"], help="sets the quotas between forward and backward")
    group.add_argument("--quota", action="append", default=[], metavar="REGST=N", help="blocks of the regsts whose id matches the pattern")
    group.add_argument(
        "--bucket-mb", type=float, default=None, metavar="MB", help="gradients are reduced in buckets of this size (default 25)"
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="regista",
        description="Plan, predict and perform distributed training: an nn.Module and a cluster become one Plan of actors and registers, "
        "which is simulated, run by real processes, and compared.",
        epilog="a first look: regista demo.   Then: regista plan zoo:gpt --cluster local:2 -o plan.json",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        return sub

    demo = verb("demo", "plan, predict, run and compare a GPT on 2 CPU devices")
    demo.add_argument("--out", default="out/demo", metavar="DIR", help="where the files go (default out/demo)")
    demo.add_argument("--steps", type=int, default=20, help="training steps to run (default 20)")
    demo.add_argument("--model", default="zoo:gpt", metavar="MODEL", help=_MODEL_HELP)

    verb("doctor", "check this machine: versions, cores, memory, solver, processes")

    calibrate = verb("calibrate", "measure this machine (a cluster TOML) or the acts of a plan (a cost table)")
    calibrate.add_argument("plan", nargs="?", metavar="PLAN", help="a plan: profile its acts while the peers run; without it: the machine")
    calibrate.add_argument("--cluster", default="local:2", metavar="C", help="what to measure without a plan: " + _CLUSTER_HELP)
    calibrate.add_argument("--rounds", type=int, default=15, help="interleaved repeats of every act (default 15)")
    calibrate.add_argument("-o", "--out", required=True, metavar="FILE", help="cluster TOML, or cost table JSON with PLAN")

    plan = verb("plan", "search a plan for a model on a cluster")
    plan.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    plan.add_argument("--cluster", required=True, metavar="C", help=_CLUSTER_HELP)
    plan.add_argument("-o", "--out", required=True, metavar="FILE", help="the plan (JSON)")
    _add_plan_options(plan)

    explain = verb("explain", "show a plan in words: placements, layouts, tasks, regsts with quotas, streams")
    explain.add_argument("plan", metavar="PLAN")

    simulate = verb("simulate", "predict a plan's timeline, throughput and memory")
    simulate.add_argument("plan", metavar="PLAN")
    simulate.add_argument("--cost", metavar="FILE", help="cost table of 'calibrate PLAN' (default: prices of the plan's cluster)")
    simulate.add_argument("--steps", type=int, default=4, help="steps to simulate (default 4)")
    simulate.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON)")

    run = verb("run", "perform a plan with real processes")
    run.add_argument("plan", metavar="PLAN")
    run.add_argument("--steps", type=int, default=20, help="training steps (default 20)")
    run.add_argument(
        "--performer", default="gloo", choices=["gloo", "reference"], help="gloo: one process per device; reference: one process"
    )
    run.add_argument("--timeout", type=float, default=30.0, metavar="S", help="give up when nothing happens for so long (default 30 s)")
    run.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON)")

    compare = verb("compare", "lay a simulated and a measured trace over each other")
    compare.add_argument("sim", metavar="SIM")
    compare.add_argument("run", metavar="RUN")
    compare.add_argument("--warmup", type=int, default=None, metavar="N", help="steps of the run to leave out (default: 3 or a quarter)")
    compare.add_argument("--gantt", metavar="FILE", help="draw predicted above measured (PNG or SVG)")
    compare.add_argument("-o", "--out", metavar="FILE", help="the comparison (JSON)")

    gantt = verb("gantt", "draw one trace, or two above each other")
    gantt.add_argument("traces", nargs="+", metavar="TRACE")
    gantt.add_argument("--steps", type=int, default=2, help="the last N steps (default 2)")
    gantt.add_argument("-o", "--out", required=True, metavar="FILE", help="PNG or SVG")

    export = verb("export", "write traces for other tools: Perfetto / Chrome trace JSON")
    export.add_argument("traces", nargs="+", metavar="TRACE")
    export.add_argument("--format", default="perfetto", choices=["perfetto"], help="the format (default perfetto)")
    export.add_argument("-o", "--out", required=True, metavar="FILE")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code (0 done, 2 refused, 130 interrupted)."""
    args = build_parser().parse_args(argv)
    warnings.showwarning = _show_warning
    # Imported late: 'regista --help' should not wait for torch.
    from regista import commands

    try:
        result = getattr(commands, args.verb)(args)
    except RegistaError as error:
        print(f"regista {args.verb}: {error}", file=sys.stderr)
        if args.json:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        return 2
    except KeyboardInterrupt:
        print(f"regista {args.verb}: interrupted", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(result, indent=1))
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """One line, no source code: only our own warnings are for the user."""
    if category.__module__.split(".")[0] in ("regista", "backend", "planner", "simulator"):
        print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
