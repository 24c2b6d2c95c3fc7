"""The command line.  Every verb has --json for machines; every refusal is one message and exit code 2."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from planner.ir.errors import RegistaError

__all__ = ["build_parser", "main"]


class Usage(RegistaError):
    """Arguments that the command line does not understand."""


class _Parser(argparse.ArgumentParser):
    """Refuses as every verb does: one message, no table of options in front of it."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; '{self.prog} --help' lists what can be given")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1 is needed")
    return number


def _rank(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}: ranks count from 0")
    return number


def _schedule(text: str) -> str:
    names = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-auto")
    if text in names or text.endswith(".csv"):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no schedule (choose from {', '.join(map(repr, names))}, or give a .csv file)")


def _count_or_auto(text: str) -> int | None:
    return None if text == "auto" else _count(text)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: a finite number above 0 is needed")
    return number


# What argparse calls them in its messages.
_count.__name__, _count_or_auto.__name__, _positive.__name__ = "whole number", "whole number or auto", "number"
_rank.__name__ = "whole number"

_MODEL_HELP = "zoo:NAME?key=value&..., file.py:factory (a function without arguments that returns a regista.Program), or a .pt2"
_DATA_HELP = "tokens:PATH?seq=128&dtype=uint16, arrays:x.npy,y.npy, images:DIR?size=64, or synthetic:float32[3,32,32],int64[]:10"
_PLAN_HELP = "the file of 'regista plan'"
_CLUSTER_HELP = "local:N (N CPU devices of this machine), a preset ('regista clusters' lists them; NAME:NODES), or a cluster TOML"


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to fix (the rest is searched)")
    group.add_argument("--stages", type=_count_or_auto, default=1, metavar="P", help="pipeline stages, or auto: searched (default 1)")
    group.add_argument(
        "--mesh", metavar="A,B", help="device mesh inside each stage, 1 to 3 axes, for example 2,2 or 2x2 (default: searched)"
    )
    group.add_argument(
        "--micro-batches", type=_count_or_auto, default=1, metavar="M", help="micro-batches per step, or auto: searched (default 1)"
    )
    group.add_argument(
        "--recompute",
        default="auto",
        choices=["auto", "none", "blocks"],
        help="blocks: keep the inputs of numbered blocks (h.0, h.1, ...) and make the rest again (default auto: where nothing else fits)",
    )
    group.add_argument(
        "--zero",
        default="auto",
        choices=["auto", "0", "1", "2", "3"],
        help="ZeRO level: 1 splits optimizer state, 2 gradients too, 3 parameters too (default auto: searched, 3 where memory binds)",
    )
    group.add_argument(
        "--cut", action="append", default=[], metavar="MODULE", help="module path that begins the next stage (default: even flop)"
    )
    group.add_argument(
        "--balance",
        type=_positive,
        metavar="SHARE",
        help="cut stages where the fewest bytes cross, none with more work than the mean by this share, for example 0.1 (an ILP on the graph)",
    )
    group.add_argument("--pin", action="append", default=[], metavar="PATTERN=SBP", help="layout of parameters, states or inputs by name")
    group.add_argument(
        "--schedule",
        type=_schedule,
        default="1f1b",
        metavar="NAME",
        help="order of a pipeline's passes: 1f1b (default), gpipe, interleaved; zb-h1, zb-h2 or zb-auto, which split the backward pass into "
        "an input and a weight part; or a .csv file of torch.distributed.pipelining",
    )
    group.add_argument(
        "--interleave", type=_count, default=1, metavar="V", help="stages per device group, for --schedule interleaved or a .csv"
    )
    group.add_argument(
        "--hold",
        type=_count,
        metavar="N",
        help="micro-batches' activations that a device may hold, for --schedule zb-auto (default: stages)",
    )
    group.add_argument("--quota", action="append", default=[], metavar="REGST=N", help="blocks of the regsts whose id matches the pattern")
    group.add_argument(
        "--bucket-mb", type=_positive, default=None, metavar="MB", help="gradients are reduced in buckets of this size (default 25)"
    )
    search = parser.add_argument_group("how to search (Ctrl-C takes the best plan so far)")
    search.add_argument(
        "--method",
        default="exact",
        choices=["exact", "o3", "o2", "greedy", "exhaustive"],
        help="exact: certified optimum (default); o3, o2: as TePDist; greedy: as OneFlow; exhaustive: all combinations of a small graph",
    )
    search.add_argument(
        "--seconds", type=_positive, metavar="S", help="end the search by then with the best plan so far (default: no limit)"
    )


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


_counts.__name__ = "list of whole numbers"


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog="regista",
        allow_abbrev=False,
        description="Plan, predict and perform distributed training: an nn.Module and a cluster become one Plan of actors and registers, "
        "which is simulated, run by real processes, and compared.",
        epilog="a first look: regista demo.   Then: regista plan zoo:gpt --cluster local:2 -o plan.json",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        return sub

    demo = verb("demo", "plan, predict, run and compare a GPT on 2 CPU devices")
    demo.add_argument("--out", default="out/demo", metavar="DIR", help="where the files go (default out/demo)")
    demo.add_argument("--steps", type=_count, default=20, help="training steps to run (default 20)")
    demo.add_argument("--model", default="zoo:gpt", metavar="MODEL", help=_MODEL_HELP)

    verb("doctor", "check this machine: versions, cores, memory, solver, processes")

    calibrate = verb("calibrate", "measure this machine (a cluster TOML) or the acts of a plan (a cost table)")
    calibrate.add_argument("plan", nargs="?", metavar="PLAN", help="a plan: profile its acts while the peers run; without it: the machine")
    calibrate.add_argument("--cluster", metavar="C", help="what to measure without a plan (default local:2): " + _CLUSTER_HELP)
    calibrate.add_argument("--rounds", type=_count, default=15, help="interleaved repeats of every measurement (default 15)")
    calibrate.add_argument("--data", metavar="DATA", help="with PLAN: " + _DATA_HELP)
    calibrate.add_argument("-o", "--out", required=True, metavar="FILE", help="cluster TOML, or cost table JSON with PLAN")

    plan = verb("plan", "search a plan for a model on a cluster")
    plan.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    plan.add_argument("--cluster", required=True, metavar="C", help=_CLUSTER_HELP)
    plan.add_argument("-o", "--out", required=True, metavar="FILE", help="the plan (JSON)")
    _add_plan_options(plan)

    explain = verb("explain", "show a plan in words, what other layouts would cost, where its time goes and what fills its devices")
    explain.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    which = explain.add_mutually_exclusive_group()
    which.add_argument("--op", metavar="PATTERN", help="price the layouts of ops (by id or target) and states whose name matches")
    which.add_argument("--module", metavar="PATTERN", help="price those of a module's states and forward ops, what is beneath it included")
    explain.add_argument("--top", type=_count, default=12, metavar="N", help="price so many, the largest first (default 12)")
    explain.add_argument("--seconds", type=_positive, default=30.0, metavar="S", help="price alternatives for at most so long (default 30)")

    diff = verb("diff", "say what differs between two plans")
    diff.add_argument("a", metavar="A", help=_PLAN_HELP)
    diff.add_argument("b", metavar="B", help="another one")

    whatif = verb("whatif", "plan the same program on a changed cluster, and price the old decisions there")
    whatif.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    whatif.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="KEY=VALUE",
        help="a key of the cluster's TOML, for example cluster.links.nic.bandwidth_GBps=50; may be repeated",
    )
    whatif.add_argument("-o", "--out", metavar="FILE", help="the new plan (JSON)")

    quotas = verb("quotas", "give a plan's regsts the quotas of least memory or most throughput, with a certificate")
    quotas.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    goal = quotas.add_mutually_exclusive_group(required=True)
    goal.add_argument("--full-throughput", action="store_true", help="least register memory at the step time of unlimited quotas")
    goal.add_argument("--budget", metavar="SIZE", help="most throughput with at most so much memory per device, for example 8GiB")
    goal.add_argument("--pareto", action="store_true", help="show throughput against register memory")
    quotas.add_argument("--cost", metavar="FILE", help="cost table of 'calibrate PLAN' (default: prices of the plan's cluster)")
    quotas.add_argument("--seconds", type=_positive, default=20.0, metavar="S", help="search for about so long (default 20)")
    quotas.add_argument("-o", "--out", metavar="FILE", help="the plan with the new quotas (JSON)")

    loading = verb("loading", "give a plan actors that read, prepare and copy its data, each as far ahead as its quota lets it")
    loading.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    loading.add_argument("--data", required=True, metavar="DATA", help=_DATA_HELP)
    loading.add_argument("--load-quota", type=_count, default=2, metavar="N", help="blocks of each regst of the chain (default 2)")
    loading.add_argument("--copy", action="store_true", help="with a copy to the device even where it is a CPU")
    loading.add_argument("-o", "--out", required=True, metavar="FILE", help="the plan with the chain (JSON)")

    simulate = verb("simulate", "predict a plan's throughput, utilisation, memory and timeline")
    simulate.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    simulate.add_argument("--cost", metavar="FILE", help="cost table of 'calibrate PLAN' (default: prices of the plan's cluster)")
    simulate.add_argument("--steps", type=_count, default=4, help="steps to simulate (default 4)")
    simulate.add_argument(
        "--engine", default="auto", choices=["auto", "simpy", "compiled"], help="who plays: both give one trace (default: by size)"
    )
    simulate.add_argument(
        "--noise", type=_positive, metavar="JITTER", help="also an interval: sigma of the logarithm of compute acts' times"
    )
    simulate.add_argument("--runs", type=_count, metavar="N", help="runs with noise (default 20)")
    simulate.add_argument("--seed", type=int, metavar="S", help="of the noise (default 0)")
    simulate.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON)")

    run = verb("run", "perform a plan with real processes")
    run.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    run.add_argument("--steps", type=_count, default=20, help="training steps (default 20)")
    run.add_argument(
        "--performer",
        default="gloo",
        choices=["gloo", "threads", "reference"],
        help="gloo: one process per device; threads: one process, a thread per stream; reference: one thread",
    )
    run.add_argument(
        "--device", default="cpu", metavar="DEVICES", help="threads: cpu, cuda, cuda:1, or by rank, 0=cpu,1=cuda (default cpu)"
    )
    run.add_argument("--data", metavar="DATA", help=_DATA_HELP + " (default: the program's own batches)")
    run.add_argument(
        "--timeout", type=_positive, metavar="S", help="gloo, threads: give up when nothing happens for so long (default 30 s)"
    )
    run.add_argument(
        "--cost", metavar="FILE", help="cost table of 'calibrate PLAN' for the prediction (default: prices of the plan's cluster)"
    )
    run.add_argument(
        "--init",
        default="module",
        metavar="FROM",
        help="first values: module (its own, default), philox:SEED (each rank draws just its part), weights:FILE, checkpoint:DIR",
    )
    run.add_argument("--checkpoint", metavar="DIR", help="save parameters and optimizer state there, at the end at least")
    run.add_argument("--save-every", type=_count, metavar="N", help="and after every N steps, while training goes on")
    run.add_argument("--keep", type=_count, metavar="K", help="the K newest checkpoints stay (default: all)")
    run.add_argument("--resume", action="store_true", help="go on where the newest checkpoint of DIR ends, up to --steps")
    run.add_argument(
        "--max-restarts", type=_rank, default=0, metavar="R", help="after a fault start again, R times at most, from the newest checkpoint"
    )
    run.add_argument("--allow-nan", action="store_true", help="go on when the loss is no finite number")
    run.add_argument("--nnodes", type=_count, metavar="N", help="hosts; run the same command on each (default 1)")
    run.add_argument("--rdzv", metavar="HOST:PORT", help="where the launchers of several hosts meet; the same on all")
    run.add_argument("--node-rank", type=_rank, metavar="K", help="this host, 0 is HOST of --rdzv (default: as the launchers agree)")
    run.add_argument("--run-id", metavar="ID", help="tells runs at one rendezvous apart; the same on all hosts (default: by the plan)")
    run.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON); of several hosts host 0 writes it")

    saved = verb("checkpoint", "look at the checkpoints of a run")
    what = saved.add_subparsers(dest="what", required=True, metavar="WHAT", help="what to do with them")
    for name, text in (
        ("show", "what the newest checkpoint holds"),
        ("verify", "read every byte of it and compare the checksums"),
        ("export", "write it as one file for plain torch"),
    ):
        sub = what.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        sub.add_argument("folder", metavar="DIR", help="the folder of 'regista run --checkpoint', or a step-NUMBER in it")
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object instead of tables")
        if name == "export":
            sub.add_argument("--optimizer", action="store_true", help="also the optimizer's state, as torch.optim loads it")
            sub.add_argument("-o", "--out", required=True, metavar="FILE", help="the state_dict (.pt)")

    deploy = verb("deploy", "write a plan as a Kubernetes manifest (Kubeflow TrainJob) or as a Slurm script")
    deploy.add_argument("plan", metavar="PLAN", help=_PLAN_HELP)
    deploy.add_argument(
        "--kind", required=True, choices=["k8s", "slurm"], help="k8s: a TrainJob of Kubeflow Trainer 2.3; slurm: for sbatch"
    )
    deploy.add_argument("--image", metavar="NAME", help="container image that holds regista (k8s: needed; slurm: by the Pyxis plugin)")
    deploy.add_argument("--steps", type=_count, default=20, help="training steps (default 20)")
    deploy.add_argument("--nnodes", type=_count, metavar="N", help="machines (default: as many as the plan was made for)")
    deploy.add_argument("--claim", metavar="NAME", help="k8s: PersistentVolumeClaim that holds plan.json (default: a ConfigMap)")
    deploy.add_argument("-o", "--out", metavar="FILE", help="where it goes (default: standard output)")

    compare = verb("compare", "lay a simulated and a measured trace over each other")
    compare.add_argument("sim", metavar="SIM", help="the trace of 'regista simulate'")
    compare.add_argument("run", metavar="RUN", help="the trace of 'regista run', of the same plan")
    compare.add_argument("--warmup", type=int, default=None, metavar="N", help="steps of the run to leave out (default: 3 or a quarter)")
    compare.add_argument("--gantt", metavar="FILE", help="draw predicted above measured (PNG or SVG)")
    compare.add_argument("-o", "--out", metavar="FILE", help="the comparison (JSON)")

    gantt = verb("gantt", "draw one trace, or two above each other, one row per device")
    gantt.add_argument("traces", nargs="+", metavar="TRACE", help="traces of one plan, simulated or measured")
    gantt.add_argument("--steps", type=_count, default=2, help="the last N steps (default 2)")
    gantt.add_argument("--memory", action="store_true", help="live bytes per device beneath, by category, with the peak")
    gantt.add_argument("--links", action="store_true", help="how busy each link is beneath")
    gantt.add_argument("--streams", action="store_true", help="one row per stream of every device instead, hosts and links too")
    gantt.add_argument("-o", "--out", required=True, metavar="FILE", help="PNG or SVG")

    timeline = verb("timeline", "write a timeline for the browser: one HTML file that zooms")
    timeline.add_argument("traces", nargs="+", metavar="TRACE", help="one trace, or a simulated and a measured one of the same plan")
    timeline.add_argument("--steps", type=_count, default=None, help="the last N steps (default: as many as 20,000 acts allow)")
    timeline.add_argument("-o", "--out", required=True, metavar="FILE", help="HTML; it needs no network")

    report = verb(
        "report", "write pages for the browser: a comparison with tables, timeline, errors and what-ifs; or all of a folder of results"
    )
    report.add_argument(
        "what", nargs="+", metavar="WHAT", help="the traces of 'simulate' and of 'run', in this order; or one folder of results"
    )
    report.add_argument("--warmup", type=int, default=None, metavar="N", help="steps of the run to leave out (default: 3 or a quarter)")
    report.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="HTML; it needs no network.  Of a folder: the folder of the pages"
    )

    ops = verb("ops", "list the ops that have an SBP rule, or those that a model uses")
    ops.add_argument("--model", metavar="MODEL", help="say which targets its training step uses and which lack a rule: " + _MODEL_HELP)

    timing = verb("search-time", "time the search methods on models of growing size, and draw it")
    timing.add_argument("--models", default="zoo:gpt", metavar="M,...", help="zoo models that have a key 'layers' (default zoo:gpt)")
    timing.add_argument("--methods", default="exact,o3,o2,greedy", metavar="M,...", help="search methods (default exact,o3,o2,greedy)")
    timing.add_argument("--layers", type=_counts, default=(1, 2, 4, 8), metavar="N,...", help="numbers of layers (default 1,2,4,8)")
    timing.add_argument("--cluster", default="dgx-a100:1", metavar="C", help="(default dgx-a100:1) " + _CLUSTER_HELP)
    timing.add_argument("--mesh", default="2,4", metavar="A,B", help="device mesh (default 2,4)")
    timing.add_argument("--seconds", type=_positive, default=10.0, metavar="S", help="limit of one search (default 10)")
    timing.add_argument(
        "--csv", metavar="FILE", help="the table; rows it has are not measured again (default: the picture's name with .csv)"
    )
    timing.add_argument("-o", "--out", required=True, metavar="FILE", help="the picture (PNG or SVG)")

    sweep = verb("sweep", "perform an experiment's manifest: its points, the relations that it expects, its figures")
    sweep.add_argument("manifest", metavar="MANIFEST", help="the experiment (TOML); experiments/README.md explains it")
    sweep.add_argument("--jobs", type=_count, default=1, metavar="N", help="processes that plan and simulate (default 1; runs take 1)")
    sweep.add_argument("--out", metavar="DIR", help="where results/ and figures/ go (default: beside the manifest's folder)")
    sweep.add_argument(
        "--only", action="append", default=[], metavar="WHICH", help="points whose label matches, or a condition: stages=2; may be repeated"
    )
    sweep.add_argument("--fresh", action="store_true", help="begin anew instead of going on with the CSV")
    sweep.add_argument("--smoke", action="store_true", help="the manifest's small size: that it works, not what it claims")
    sweep.add_argument("--redraw", action="store_true", help="check and draw from the CSV, perform nothing")

    verb("clusters", "list the clusters that --cluster knows by name")

    iopddl = verb("iopddl", "solve an instance of Google's sharding-choice contest, with a lower bound")
    iopddl.add_argument("file", metavar="FILE", help="the instance (*.json or *.json.gz)")
    iopddl.add_argument("--seconds", type=_positive, default=300.0, metavar="S", help="search for at most so long (default 300)")
    iopddl.add_argument("-o", "--out", metavar="FILE", help="the choice: a JSON list with the strategy of every node")

    export = verb("export", "write traces for other tools: Perfetto / Chrome trace JSON, or profiles as PyTorch's (Kineto)")
    export.add_argument("traces", nargs="+", metavar="TRACE", help="traces of one plan, simulated or measured; kineto: one")
    export.add_argument(
        "--format",
        default="perfetto",
        choices=["perfetto", "kineto"],
        help="perfetto: one file for ui.perfetto.dev (default); kineto: a folder with one file per rank, for Holistic Trace Analysis",
    )
    export.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="JSON; open it at ui.perfetto.dev or chrome://tracing; kineto: the folder"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code (0 done, 1 a sweep that breaks its claim, 2 refused, 130 interrupted)."""
    given = list(sys.argv[1:] if argv is None else argv)
    # Read before the arguments are, which may be what is refused.
    as_json = "--json" in given
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _perform(given)
    except (RegistaError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output has gone ('| head'): end in silence, also when Python flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return _refuse(given, as_json, type(error).__name__, str(error), 2)
    except KeyboardInterrupt:
        return _refuse(given, as_json, "Interrupted", "interrupted", 130)


def _perform(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    # Imported late: nobody who mistypes an option should wait for a solver.
    if args.verb == "iopddl":
        from regista.verbs.iopddl_command import iopddl as perform  # needs no torch
    elif args.verb == "quotas":
        from regista.verbs.quotas_command import quotas as perform  # needs no torch
    elif args.verb == "simulate":
        from regista.verbs.simulate_command import simulate as perform  # needs no torch
    elif args.verb == "deploy":
        from regista.verbs.deploy_command import deploy as perform  # needs no torch
    elif args.verb == "sweep":
        from regista.verbs.sweep_command import sweep_verb as perform
    elif args.verb == "loading":
        from regista.verbs.loading_command import loading as perform
    elif args.verb == "checkpoint":
        from regista.verbs.checkpoint_command import checkpoint as perform
    elif args.verb == "report":
        from regista.verbs.report_command import report as perform
    elif args.verb == "run":
        if args.nnodes is not None:
            # The launcher that hosts the rendezvous may end first; torch's store tells the others so in forty lines.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from regista.verbs.run_command import run as perform
    else:
        from regista.verbs import commands

        perform = getattr(commands, args.verb.replace("-", "_"))
    result = perform(args)
    if args.json:
        print(json.dumps(_finite(result), indent=1, allow_nan=False), flush=True)
    return 1 if args.verb == "sweep" and result["failed"] else 0


def _refuse(argv: Sequence[str], as_json: bool, kind: str, message: str, code: int) -> int:
    verb = f" {argv[0]}" if argv and not argv[0].startswith("-") else ""
    print(f"regista{verb}: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"type": kind, "message": message}}), flush=True)
    return code


def _finite(data: object) -> object:
    """JSON has no nan and no infinity; null stands for a number that is none (the loss of a run that diverged)."""
    match data:
        case float():
            return data if math.isfinite(data) else None
        case dict():
            return {key: _finite(value) for key, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
    return data


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """One line, no source code: only our own warnings are for the user."""
    if category.__module__.split(".")[0] in ("regista", "backend", "planner", "simulator"):
        print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
