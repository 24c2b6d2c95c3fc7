"""The verb 'run': a Plan performed, watched while it goes, and laid beside its prediction at the end."""

from __future__ import annotations

import argparse
import math
import warnings

from rich.console import Console

import regista.api as api
from backend.launch.nodes import Nodes
from backend.run_folder.outcome import Outcome
from planner.cost import load_cost
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace, check_trace
from regista.analysis.comparison import summarise
from regista.nodes import nodes_of, run_share
from regista.targets import check_targets
from regista.views.tables.live import Watched, watched
from regista.views.tables.show import show_summary
from regista.views.tables.verdict import Verdict, predict, show_verdict, verdict

__all__ = ["Diverged", "run"]

Json = dict[str, object]


class Diverged(UserWarning):
    """A loss that is nan or infinite."""


def run(args: argparse.Namespace) -> Json:
    """Read args.plan, perform args.steps steps, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: options that do not belong together.   Mismatch: --cost is a table of other acts, or the plan is of another program.
        WorkerFailed: a process died, hung or raised.   InvalidFile: a file cannot be read or written.
    """
    check_targets([args.out], [args.plan, args.cost])
    performer = api.Performer(args.performer)
    if performer is not api.Performer.GLOO:
        timeout = None if performer is api.Performer.THREADS else args.timeout
        _refuse_beside(performer, {"--timeout": timeout, "--cost": args.cost, "--nnodes": args.nnodes})
    nodes = nodes_of(args.nnodes, args.rdzv, args.node_rank, args.run_id)
    found = load_plan(args.plan)
    prediction = None
    if performer is api.Performer.GLOO:
        cost = load_cost(args.cost) if args.cost else None
        prediction = predict(found, cost, num_nodes=1 if nodes is None else nodes.count)
    is_other_host = nodes is not None and nodes.rank not in (None, 0)
    with watched(found, args.steps, quiet=args.json or is_other_host or performer is not api.Performer.GLOO) as screen:
        outcome = _perform(args, found, performer, nodes, screen)
    if outcome is None:
        return _show_end(args, found)
    check_trace(found, outcome.trace)
    lost = next((step for step, loss in enumerate(outcome.losses) if not math.isfinite(loss)), None)
    if lost is not None:
        warnings.warn(f"the loss is {outcome.losses[lost]} from step {lost} on; lower the learning rate", Diverged, stacklevel=2)
    if args.out:
        save_trace(found, outcome.trace, args.out)
    told = None if prediction is None else verdict(found, prediction, outcome.trace)
    if not args.json:
        _show(found, outcome.trace, told, outcome.losses)
    result = trace_json(found, outcome.trace) | {"losses": list(outcome.losses), "first_step": outcome.first_step}
    return result if told is None else result | {"prediction": told.to_json()}


def _refuse_beside(performer: api.Performer, given: dict[str, object]) -> None:
    for option, value in given.items():
        if value is not None:
            what = "watches processes" if option == "--timeout" else "belongs to a run on real processes"
            raise Unsupported(f"{option} {what}; performer {performer.value} has none, leave it out")


def _perform(args: argparse.Namespace, plan: Plan, performer: api.Performer, nodes: Nodes | None, screen: Watched) -> Outcome | None:
    timeout_s = args.timeout or 30.0
    if nodes is not None:
        _refuse_on_hosts(args)
        return run_share(plan, nodes, steps=args.steps, timeout_s=timeout_s, on_progress=screen, data=args.data)
    return api.run(
        plan,
        steps=args.steps,
        performer=performer,
        timeout_s=timeout_s,
        on_progress=screen,
        data=args.data,
        init=args.init,
        checkpoint=args.checkpoint,
        save_every=args.save_every or 0,
        keep=args.keep or 0,
        resume=args.resume,
        device=args.device,
        allow_nan=args.allow_nan,
        max_restarts=args.max_restarts,
    )


def _refuse_on_hosts(args: argparse.Namespace) -> None:
    """What one launcher alone can do."""
    given = {
        "--init": args.init != "module",
        "--checkpoint": args.checkpoint,
        "--resume": args.resume,
        "--device": args.device not in (None, "auto", "cpu"),
        "--allow-nan": args.allow_nan,
        "--max-restarts": args.max_restarts,
    }
    if refused := [option for option, value in given.items() if value]:
        raise Unsupported(f"{', '.join(refused)}: not carried out on several hosts yet; leave it out, or leave out --nnodes")


def _show_end(args: argparse.Namespace, plan: Plan) -> Json:
    """Of a launcher that is not host 0's."""
    if not args.json:
        out = f"; {args.out} is written there" if args.out else ""
        print(f"the ranks of this host have done {args.steps} steps of plan {plan.plan_id}; host 0 holds the results{out}", flush=True)
    return {"plan_id": plan.plan_id, "steps": args.steps, "nnodes": args.nnodes, "results": "host 0"}


def _show(plan: Plan, trace: Trace, told: Verdict | None, losses: tuple[float, ...]) -> None:
    out = Console()
    if not out.is_terminal:
        out.width = max(out.width, 160)  # a file or a pipe has no width of its own
    # One process that plays all ranks in turn is not what was predicted: its own figures alone.
    out.print(show_summary(plan, summarise(plan, trace)) if told is None else show_verdict(told))
    out.print(f"loss: {losses[0]:.4f} -> {losses[-1]:.4f}", markup=False, highlight=False, soft_wrap=True)


def trace_json(plan: Plan, trace: Trace) -> Json:
    """The facts of a trace for machines."""
    summary = summarise(plan, trace)
    return {
        "plan_id": plan.plan_id,
        "source": trace.source.value,
        "performer": trace.performer,
        "steps": trace.steps,
        "step_time_s": summary.step_time_s,
        "throughput_per_s": summary.throughput_per_s,
        "peak_bytes": dict(trace.peak_bytes),
        "about": dict(trace.about),
    }
