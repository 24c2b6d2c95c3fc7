"""The verb 'run': a Plan performed, watched while it goes, and laid beside its prediction at the end."""

from __future__ import annotations

import argparse
import math
import os
import uuid
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cost import load_cost
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan, save_trace
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from planner.ir.traces.held import StepSelection, longest
from planner.ir.traces.trace import Trace, check_trace, steps_text
from regista.analysis.comparison import summarise
from regista.targets import check_targets
from regista.verbs.arguments import DATA_HELP, add_cost, add_kernels, add_lr_schedule, add_plan, add_trust, count, positive, rank_number
from regista.verbs.screen import Json, show
from regista.verbs.showing.traces import steps_shown

if TYPE_CHECKING:
    from backend.devices.options import DeviceOptions
    from backend.launch import Nodes
    from backend.run_folder import Outcome
    from regista.api import Performer
    from regista.hosts import Saves
    from regista.views.tables.live import Watched

__all__ = ["Diverged", "add_arguments", "perform"]


class Diverged(UserWarning):
    """A loss that is nan or infinite."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_trust(parser)
    parser.add_argument("--steps", type=count, default=20, help="training steps (default 20)")
    parser.add_argument(
        "--performer",
        default="gloo",
        choices=["gloo", "threads", "reference"],
        help="gloo: one process per device; threads: one process, a thread per stream; reference: one thread",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="DEVICES",
        help="cpu, cuda (a GPU for each rank; threads: all on the first), cuda:1, or by rank, 0=cuda:0,1=cuda:0; "
        "fake: streams without hardware (default cpu)",
    )
    parser.add_argument("--graphs", action="store_true", help="with --device: fragments as CUDA graphs from their second act on")
    parser.add_argument("--ahead", type=count, metavar="N", help="with --device: acts of one stream in flight at once (default 8)")
    parser.add_argument(
        "--tf32", action="store_true", help="with --device: float32 products may take TensorFloat-32 (default: full float32)"
    )
    parser.add_argument("--deterministic", action="store_true", help="with --device: only kernels that give the same bits in every run")
    add_kernels(parser)
    parser.add_argument("--data", metavar="DATA", help=DATA_HELP + " (default: the program's own batches)")
    add_lr_schedule(parser, "; of a plan that was made with one")
    parser.add_argument(
        "--timeout", type=positive, metavar="S", help="gloo, threads: give up when nothing happens for so long (default 30 s)"
    )
    add_cost(parser, " for the prediction")
    parser.add_argument(
        "--init",
        default="module",
        metavar="FROM",
        help="first values: module (its own, default), philox:SEED (each rank draws just its part), weights:FILE, checkpoint:DIR",
    )
    parser.add_argument(
        "--ema", action="store_true", help="moving averages take the place of parameters, of --init checkpoint:DIR that has them"
    )
    parser.add_argument(
        "--outputs", metavar="FILE", help="write the outputs of an evaluation there, for torch.load: name -> one row per step"
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="save parameters and optimizer state there, at the end at least")
    parser.add_argument("--save-every", type=count, metavar="N", help="and after every N steps, while training goes on")
    parser.add_argument("--keep", type=count, metavar="K", help="the K newest checkpoints stay (default: all)")
    parser.add_argument("--resume", action="store_true", help="go on where the newest checkpoint of DIR ends, up to --steps")
    parser.add_argument(
        "--max-restarts",
        type=rank_number,
        default=0,
        metavar="R",
        help="after a fault start again, R times at most, from the newest checkpoint",
    )
    parser.add_argument("--allow-nan", action="store_true", help="go on when the loss is no finite number")
    parser.add_argument("--nnodes", type=count, metavar="N", help="hosts; run the same command on each (default 1)")
    parser.add_argument(
        "--elastic",
        metavar="MIN:MAX",
        help="instead of --nnodes: when hosts are lost, the others go on, MIN at least, with a plan made anew, from the newest checkpoint",
    )
    parser.add_argument("--rdzv", metavar="HOST:PORT", help="where the launchers of several hosts meet; the same on all")
    parser.add_argument(
        "--node-rank", type=rank_number, metavar="K", help="this host, 0 is HOST of --rdzv (default: as the launchers agree)"
    )
    parser.add_argument("--run-id", metavar="ID", help="tells runs at one rendezvous apart; the same on all hosts (default: by the plan)")
    parser.add_argument(
        "--secret",
        metavar="FILE",
        help="what the launchers of several hosts know and no stranger, 16 bytes or more (default: $REGISTA_SECRET)",
    )
    parser.add_argument(
        "--waiting",
        choices=["auto", "sleep"],
        help="how processes of one host wait for each other: auto: on cores of their own, awake for 0.5 ms, where there is a core for each; "
        "sleep: at once, on any core (default: auto)",
    )
    parser.add_argument(
        "--trace-steps",
        metavar="WHICH",
        help="of which steps the trace holds the acts, in long runs: first:20,last:20,every:1000 (default: of all)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="the trace (JSON); of several hosts host 0 writes it")


def perform(args: argparse.Namespace) -> Json:
    """Read args.plan, perform args.steps steps, write args.out if given; returns the figures for --json.

    Raises:
        Unsupported: options that do not belong together.   Mismatch: --cost is a table of other acts, or the plan is of another program.
        WorkerFailed: a process died, hung or raised.   InvalidFile: a file cannot be read or written.
    """
    from regista.api import Performer
    from regista.hosts import nodes_of
    from regista.views.tables.live import watched
    from regista.views.tables.show import show_summary
    from regista.views.tables.verdict import predict, show_verdict, verdict

    check_targets([args.out, args.outputs], [args.plan, args.cost])
    performer = Performer(args.performer)
    is_gloo = performer is Performer.GLOO
    if not is_gloo:
        timeout = None if performer is Performer.THREADS else args.timeout
        _refuse_beside(
            performer,
            {
                "--timeout": timeout,
                "--cost": args.cost,
                "--nnodes": args.nnodes,
                "--elastic": args.elastic,
                "--trace-steps": args.trace_steps,
                "--waiting": args.waiting,
            },
        )
    if args.trace_steps is not None:
        StepSelection.parse(args.trace_steps).check(args.steps)
    nodes = nodes_of(args.nnodes, args.rdzv, args.node_rank, args.run_id, args.secret, args.elastic)
    plan = load_plan(args.plan)
    if args.outputs and not plan.outputs:
        raise Unsupported(f"plan {plan.plan_id} has no outputs to write; plan it with --mode eval --outputs all, or leave --outputs out")
    prediction = None
    cost = load_cost(args.cost) if args.cost and is_gloo else None
    if is_gloo:
        prediction = predict(plan, cost, num_nodes=1 if nodes is None else nodes.count)
    is_other_host = nodes is not None and nodes.rank not in (None, 0)
    with watched(plan, args.steps, quiet=args.json or is_other_host or not is_gloo) as screen:
        performed, outcome = _perform(args, plan, performer, nodes, screen)
    if outcome is None:
        return _show_end(args, performed)
    if performed.plan_id != plan.plan_id:
        plan = performed
        prediction = predict(plan, cost, num_nodes=int(outcome.trace.about["hosts"]))
    check_trace(plan, outcome.trace)
    diverged = next((step for step, loss in enumerate(outcome.losses) if not math.isfinite(loss)), None)
    if diverged is not None:
        warnings.warn(f"the loss is {outcome.losses[diverged]} from step {diverged} on; lower the learning rate", Diverged, stacklevel=2)
    if args.out:
        save_trace(plan, outcome.trace, args.out)
    if args.outputs:
        _save_outputs(outcome, args.outputs)
    first, end = longest(outcome.trace)
    if end - first < min(2, outcome.trace.steps):
        held = f"the trace holds the steps {steps_text(outcome.trace.held_steps)}, no two in a row, so nothing is said of a step's time"
        show(args, held, *_kernels_text(outcome.trace), _loss_text(plan, outcome.losses))
        return {"plan_id": plan.plan_id, "steps": outcome.trace.steps, "losses": list(outcome.losses), "first_step": outcome.first_step}
    # One process that plays all ranks in turn is not what was predicted: its own figures alone.
    trace, which = steps_shown(plan, outcome.trace)
    judged = None if prediction is None else verdict(plan, prediction, trace)
    table = show_summary(plan, summarise(plan, trace)) if judged is None else show_verdict(judged)
    show(args, table, *which, *_kernels_text(trace), _loss_text(plan, outcome.losses))
    result = trace_json(plan, trace) | {"losses": list(outcome.losses), "first_step": outcome.first_step}
    return result if judged is None else result | {"prediction": judged.to_json()}


def _loss_text(plan: Plan, losses: Sequence[float]) -> str:
    if not plan.has_loss:
        return "no loss, since the module returns none"
    if plan.mode is Mode.EVAL:
        return f"loss: {sum(losses) / len(losses):.4f}, the mean over {len(losses)} batches"
    return f"loss: {losses[0]:.4f} -> {losses[-1]:.4f}"


def _kernels_text(trace: Trace) -> list[str]:
    """How fragments were performed, where that was asked for."""
    if (fragments := trace.about.get("compiled fragments")) is None:
        return []
    left = trace.about.get("fragments op by op")
    return [f"compiled fragments: {fragments}" + (f"; op by op: {left}" if left else "")]


def _save_outputs(outcome: Outcome, path: str) -> None:
    """``loss``: one number per step, if there is a loss; every output: the global batches of the steps, stacked."""
    import torch

    rows = {name: torch.stack([of_step[name] for of_step in outcome.outputs]) for name in outcome.outputs[0]}
    # A name that nobody can foresee: a link that lay there under a known one would be written through.
    neighbour = os.path.join(os.path.dirname(path), f".regista-{uuid.uuid4().hex[:12]}.tmp")
    loss = {"loss": torch.tensor(outcome.losses, dtype=torch.float64)} if outcome.losses else {}
    torch.save(loss | rows, neighbour)
    os.replace(neighbour, path)


def _refuse_beside(performer: Performer, given: dict[str, object]) -> None:
    for option, value in given.items():
        if value is not None:
            what = "watches processes" if option == "--timeout" else "belongs to a run on real processes"
            raise Unsupported(f"{option} {what}; performer {performer.value} has none, leave it out")


def _perform(
    args: argparse.Namespace, plan: Plan, performer: Performer, nodes: Nodes | None, screen: Watched
) -> tuple[Plan, Outcome | None]:
    """The Plan that was performed at the end, and what it left; None: another host has it."""
    import regista.api as api
    from backend.devices.cores import Waiting
    from regista.hosts import run_share

    timeout_s = args.timeout or 30.0
    if nodes is not None:
        _refuse_on_hosts(args)
        return run_share(
            plan,
            nodes,
            steps=args.steps,
            timeout_s=timeout_s,
            on_progress=screen,
            data=args.data,
            lr_schedule=args.lr_schedule,
            init=args.init,
            ema=args.ema,
            saves=_saves(args),
            max_restarts=args.max_restarts,
            allow_nan=args.allow_nan,
        )
    outcome = api.run(
        plan,
        steps=args.steps,
        performer=performer,
        timeout_s=timeout_s,
        on_progress=screen,
        data=args.data,
        lr_schedule=args.lr_schedule,
        init=args.init,
        ema=args.ema,
        checkpoint=args.checkpoint,
        save_every=args.save_every or 0,
        keep=args.keep or 0,
        resume=args.resume,
        device=args.device,
        device_options=_device_options(args),
        allow_nan=args.allow_nan,
        max_restarts=args.max_restarts,
        trace_steps=args.trace_steps,
        keep_states=False,
        waiting=Waiting(args.waiting or Waiting.AUTO),
        kernels=args.kernels or "eager",
    )
    return plan, outcome


def _saves(args: argparse.Namespace) -> Saves | None:
    from regista.hosts import Saves

    if args.checkpoint is None:
        asked = {"--resume": args.resume, "--save-every": args.save_every, "--keep": args.keep}
        if given := [option for option, value in asked.items() if value]:
            raise Unsupported(f"{given[0]} belongs to checkpoints; give --checkpoint DIR, a folder that all hosts share, too")
        return None
    return Saves(folder=args.checkpoint, every=args.save_every or 0, keep=args.keep or 0, resume=args.resume)


def _device_options(args: argparse.Namespace) -> DeviceOptions:
    from backend.devices.options import AHEAD, DeviceOptions

    return DeviceOptions(graphs=args.graphs, ahead=args.ahead or AHEAD, tf32=args.tf32, deterministic=args.deterministic)


def _refuse_on_hosts(args: argparse.Namespace) -> None:
    """What one launcher alone can do."""
    given = {
        "--device": args.device not in (None, "auto", "cpu"),
        "--graphs": args.graphs,
        "--ahead": args.ahead,
        "--tf32": args.tf32,
        "--deterministic": args.deterministic,
        "--trace-steps": args.trace_steps,
        "--waiting": args.waiting,
        "--kernels": args.kernels == "compiled",
    }
    if refused := [option for option, value in given.items() if value]:
        raise Unsupported(f"{', '.join(refused)}: not carried out on several hosts yet; leave it out, or leave out --nnodes")


def _show_end(args: argparse.Namespace, plan: Plan) -> Json:
    """Of a launcher that is not host 0's."""
    if not args.json:
        out = f"; {args.out} is written there" if args.out else ""
        print(f"the ranks of this host have done {args.steps} steps of plan {plan.plan_id}; host 0 holds the results{out}", flush=True)
    return {"plan_id": plan.plan_id, "steps": args.steps, "nnodes": args.nnodes or args.elastic, "results": "host 0"}


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
