"""The verb 'plan': search a plan for a model on a cluster."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from planner.cost import parse_mesh
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import Unsupported
from planner.ir.files import save_plan
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from planner.ir.units import MB, show_s
from planner.schedule.kinds import Schedule
from regista.origin import names_code, record
from regista.targets import check_targets
from regista.verbs.arguments import (
    CLUSTER_HELP,
    MODEL_HELP,
    add_lr_schedule,
    add_routing,
    add_spread,
    count,
    count_or_auto,
    positive,
    routing_of,
    share,
)
from regista.verbs.screen import Json, show, status, status_text
from regista.verbs.surroundings import surroundings

if TYPE_CHECKING:
    from planner.solve.problem import Progress
    from regista.trust.interval import Interval

__all__ = ["add_arguments", "perform", "plan_json"]

_SCHEDULES = (*(schedule.value for schedule in Schedule if schedule is not Schedule.GIVEN), "auto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--cluster", required=True, metavar="C", help=CLUSTER_HELP)
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the plan (JSON)")
    parser.add_argument("--picture", metavar="FILE", help="the devices with their groups, data, tensor and pipeline (PNG or SVG)")
    _add_fixed(parser.add_argument_group("what to fix (the rest is searched)"))
    _add_update(parser.add_argument_group("what each step does with the gradients (default: what the program says)"))
    _add_search(parser.add_argument_group("how to search (Ctrl-C takes the best plan so far)"))


def _schedule(text: str) -> str:
    if text in _SCHEDULES or text.endswith(".csv"):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no schedule (choose from {', '.join(map(repr, _SCHEDULES))}, or give a .csv file)")


def _batch_dim(text: str) -> int | tuple[int | None, ...]:
    if not re.fullmatch(r"(-?[0-9]{1,3}|none)(,(-?[0-9]{1,3}|none))*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no dim: write 1, or an entry per input such as 0,none,1")
    dims = tuple(None if part == "none" else int(part) for part in text.split(","))
    return dims[0] if len(dims) == 1 and dims[0] is not None else dims


def _outputs(text: str) -> bool | list[str]:
    return text == "all" or text.split(",")


def _add_fixed(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--stages", type=count_or_auto, default=1, metavar="P", help="pipeline stages, or auto: searched (default 1)")
    group.add_argument(
        "--mesh", metavar="A,B", help="device mesh inside each stage, 1 to 3 axes, for example 2,2 or 2x2 (default: searched)"
    )
    group.add_argument(
        "--micro-batches", type=count_or_auto, default=1, metavar="M", help="micro-batches per step, or auto: searched (default 1)"
    )
    group.add_argument(
        "--mode",
        default=Mode.TRAIN.value,
        choices=[mode.value for mode in Mode],
        help="train: a training step (default); eval: the forward pass alone, of the module in eval mode, without update",
    )
    group.add_argument(
        "--outputs",
        type=_outputs,
        default=False,
        metavar="NAMES",
        help="of --mode eval: what leaves the step beside the loss, by name with commas (logits,hidden.0), or all",
    )
    group.add_argument(
        "--batch-dim",
        type=_batch_dim,
        metavar="D",
        help="dim of the inputs that is the batch: one for all (1), or one per input, none where there is no batch (0,none,0); "
        "default: dim 0 of the first, and of all of that extent",
    )
    group.add_argument(
        "--precision",
        metavar="P",
        help="fp32: formats as the module has them; bf16-mixed, fp16-mixed: float32 parameters and moments, low-precision working copies, "
        "under torch.autocast (default: the program's own)",
    )
    group.add_argument(
        "--grad-dtype",
        metavar="D",
        help="fp32 or bf16: in which format gradients are accumulated and reduced (default: as autograd gives them, fp32 in mixed precision)",
    )
    group.add_argument(
        "--attention",
        choices=["fused", "eager"],
        help="fused: scaled_dot_product_attention is one op, performed by a fused kernel that keeps a number per row (default); eager: products "
        "and a softmax, which keep all weights; dropout of the weights is always eager",
    )
    group.add_argument(
        "--kernels",
        choices=["eager", "fused", "compiled"],
        help="how models are run on a cluster whose kernels are priced one by one: every op a kernel; elementwise chains, reductions and "
        "normalisations one pass; the same, launched at once (default: as the cluster's file says, fused)",
    )
    group.add_argument(
        "--batch-norm",
        default="global",
        choices=["global", "local"],
        help="statistics of batch norm: of the whole micro-batch, as on one device (default), or of each device's part, as "
        "DistributedDataParallel has them; running statistics are then those of the first part",
    )
    group.add_argument(
        "--recompute",
        default="auto",
        metavar="WHAT",
        help="what the backward part computes again. blocks: keep only the inputs of numbered blocks (h.0, h.1, ...); attention: not what lies between "
        "its two products; 60%%: the ops that cost least while 60 %% of the bytes are kept; selective: where nothing else fits, the largest "
        "of 80, 60, 40 and 20 %% that does, then blocks (default auto: blocks where nothing else fits; or none)",
    )
    group.add_argument(
        "--context",
        default="auto",
        choices=["auto", "gathered", "heads", "ring"],
        help="attention over a sequence that is cut: gathered: each device gathers all keys and values; heads: an all-to-all makes heads of it "
        "(Ulysses); ring: keys and values go from device to device while others are attended to (default auto: searched)",
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
        type=positive,
        metavar="SHARE",
        help="cut stages where the fewest bytes cross, each with at most (1 + SHARE) times the mean work, for example 0.1 (an ILP on the graph)",
    )
    group.add_argument("--pin", action="append", default=[], metavar="PATTERN=SBP", help="layout of parameters, states or inputs by name")
    group.add_argument(
        "--schedule",
        type=_schedule,
        default="1f1b",
        metavar="NAME",
        help="order of a pipeline's passes: 1f1b (default), gpipe, interleaved; zb-h1, zb-h2 or zb-auto, which split the backward pass into "
        "an input and a weight part; auto: all of these on the shape found, the quickest by simulation that fits; or a .csv file of "
        "torch.distributed.pipelining",
    )
    group.add_argument(
        "--interleave", type=count, default=1, metavar="V", help="stages per device group, for --schedule interleaved or a .csv"
    )
    group.add_argument(
        "--hold",
        type=count,
        metavar="N",
        help="micro-batches' activations that a device may hold, for --schedule zb-auto (default: stages)",
    )
    group.add_argument("--quota", action="append", default=[], metavar="REGST=N", help="blocks of the regsts whose id matches the pattern")
    group.add_argument(
        "--bucket-mb", type=positive, default=None, metavar="MB", help="gradients are reduced in buckets of this size (default 25)"
    )
    group.add_argument(
        "--strict", action="store_true", help="refuse ops without an SBP rule (default: each device of their stage performs them whole)"
    )


def _add_update(group: argparse._ArgumentGroup) -> None:
    add_lr_schedule(group, "; the plan is the same for all schedules, so 'regista run' takes it again")
    group.add_argument("--clip-norm", type=positive, metavar="N", help="scale all gradients down where their 2-norm is above N")
    group.add_argument("--clip-value", type=positive, metavar="V", help="cut each element of a gradient to between -V and V")
    group.add_argument(
        "--ema",
        type=share,
        metavar="D",
        help="keep a moving average of each trained parameter, D x average + (1 - D) x parameter after each step",
    )
    group.add_argument(
        "--loss-scale",
        metavar="SCALE",
        help="scale of the loss in --precision fp16-mixed: dynamic:FIRST?interval=2000&growth=2&backoff=0.5, as torch.amp.GradScaler (default, "
        "from 65536; a number alone is the first scale), or fixed:SCALE",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--method",
        default="exact",
        choices=["exact", "o3", "o2", "greedy", "exhaustive"],
        help="exact: certified optimum (default); o3, o2: as TePDist; greedy: as OneFlow; exhaustive: all combinations of a small graph",
    )
    group.add_argument(
        "--robust",
        action="store_true",
        help="find what is best at the pessimistic prices: rates, bandwidths and memory lower, latencies and times higher, each by its spread; "
        "what the search proves is about these prices",
    )
    add_spread(group)
    add_routing(group, "the search prices experts at the quantile, and the plan says which work is theirs")
    group.add_argument("--seconds", type=positive, metavar="S", help="end the search by then with the best plan so far (default: no limit)")


def perform(args: argparse.Namespace) -> Json:
    import regista.api as api
    from regista.analysis.answer import answer
    from regista.trust.constants import parse_spreads
    from regista.trust.interval import interval_text, objective_interval
    from regista.update_options import UpdateOptions
    from regista.views.tables.answer import answer_json, show_answer
    from regista.views.tables.explanation import gap_text
    from regista.views.tables.show import show_plan

    check_targets([args.out, args.picture], [args.model, args.cluster])
    if args.picture is not None:
        from regista.views.pictures.gantt import check_picture

        check_picture(args.picture)
    if args.spread and not args.robust:
        raise Unsupported(f"--spread {args.spread[0]} belongs to --robust, which is not given; add it, or leave the spread out")
    robust = parse_spreads(args.spread) if args.robust else None
    load = routing_of(args)
    others: list[Plan] = []
    around = surroundings()
    with status(args, "tracing and searching ...") as line:
        change = status_text(line)

        def watch_layouts(progress: Progress) -> None:
            change(_search_text(progress))
            around.tell(progress.objective, progress.lower_bound, progress.seconds, "")

        def watch_shapes(shape: str, best_s: float, bound_s: float) -> None:
            change(_shape_text(shape, best_s, bound_s))
            around.tell(best_s, bound_s, 0.0, shape)

        plan = api.plan(
            args.model,
            args.cluster,
            stages=args.stages,
            mesh=None if args.mesh is None else parse_mesh(args.mesh),
            micro_batches=args.micro_batches,
            mode=args.mode,
            outputs=args.outputs,
            recompute=args.recompute,
            context=None if args.context == "auto" else args.context,
            load=load,
            zero=None if args.zero == "auto" else int(args.zero),
            cuts=args.cut,
            balance=args.balance,
            pins=args.pin,
            schedule=args.schedule,
            interleave=args.interleave,
            hold=args.hold,
            strict=args.strict,
            batch_dim=args.batch_dim,
            batch_norm=args.batch_norm,
            update=UpdateOptions(
                lr_schedule=args.lr_schedule,
                clip_norm=args.clip_norm,
                clip_value=args.clip_value,
                ema=args.ema,
                loss_scale=args.loss_scale,
            ),
            precision=args.precision,
            grad_dtype=args.grad_dtype,
            attention=args.attention,
            kernels=args.kernels,
            robust=robust,
            on_next=others.append,
            quotas=_quotas(args.quota),
            bucket_bytes=None if args.bucket_mb is None else int(args.bucket_mb * MB),
            method=args.method,
            seconds=math.inf if args.seconds is None else args.seconds,
            on_progress=watch_layouts,
            on_shape=watch_shapes,
            cancel=around.cancel,
            memory=around.memory_of(args.model),
        )
    save_plan(plan, args.out)
    interval = objective_interval(plan)
    lead = _lead(plan, others[0], interval) if others and not args.robust else ""
    found = answer(plan)
    whole = (show_plan(plan), f"search: {gap_text(plan)}", f"interval: {interval_text(interval)}") if args.full else ()
    why_not = record(plan) if names_code(plan) else ""
    note = f"note: {why_not}, so nothing says later that you made this plan; verbs that load {plan.model} will ask for --trust"
    if args.picture is not None:
        from regista.views.pictures.device_grid import draw_device_grid

        draw_device_grid(found, args.picture)
    wrote = f"wrote {args.out}" + (f" and {args.picture}" if args.picture else "")
    show(args, show_answer(found, interval, args.out, lead), *whole, wrote, *([note] if why_not else []))
    return plan_json(plan) | {
        "answer": answer_json(found),
        "next_shape": [{"shape": _shape(other), "objective_s": other.search.objective_s} for other in others[:1]],
    }


def _shape(plan: Plan) -> str:
    mesh = "x".join(map(str, plan.placements[0].mesh))
    return f"{len(plan.placements)} stages of mesh {mesh}, {plan.micro_batches} micro-batches"


def _lead(plan: Plan, other: Plan, interval: Interval) -> str:
    """Whether the choice of shape can be told from the errors of predictions."""
    from regista.trust.interval import lead_text

    return lead_text(plan.search.objective_s, other.search.objective_s, interval, of="this shape") + f" (the next is {_shape(other)})"


def _quotas(texts: Sequence[str]) -> dict[str, int]:
    """Pattern of Regst ids -> blocks, from PATTERN=N."""
    quota_of = {}
    for text in texts:
        pattern, equals, number = text.rpartition("=")
        if not equals or not pattern or not re.fullmatch(r"-?[0-9]{1,9}", number):
            raise Unsupported(f"quota {text!r}: write PATTERN=N, for example 's0-s1.*=2'")
        quota_of[pattern] = int(number)
    return quota_of


def _search_text(progress: Progress) -> str:
    """One line on the state of a search over layouts; Ctrl-C takes the best."""
    if math.isinf(progress.objective):
        return f"searching: no plan yet, lower bound {show_s(max(progress.lower_bound, 0.0))}   {progress.seconds:.0f} s"
    gap = max(0.0, progress.objective - progress.lower_bound) / max(progress.objective, 1e-30)
    bounds = f"objective {show_s(progress.objective)}, lower bound {show_s(max(progress.lower_bound, 0.0))}, gap {gap:.2%}"
    return f"searching: {bounds}   {progress.seconds:.0f} s, Ctrl-C takes the best"


def _shape_text(shape: str, best_s: float, bound_s: float) -> str:
    """One line on the state of a search over shapes."""
    if math.isinf(best_s):
        return f"searching shapes: {shape}; lower bound {show_s(bound_s)}"
    return f"searching shapes: {shape}; best {show_s(best_s)}, lower bound {show_s(bound_s)}, Ctrl-C takes the best"


def plan_json(plan: Plan) -> Json:
    """The facts of a plan for machines."""
    from planner.parallelism.proof import covered_text
    from regista.analysis.state_bytes import state_bytes
    from regista.schedules.compared import compared_schedules
    from regista.trust.interval import objective_interval

    return {
        "plan_id": plan.plan_id,
        "model": plan.model,
        "mode": plan.mode.value,
        "cluster": plan.cluster.name,
        "num_ranks": plan.num_ranks,
        "micro_batches": plan.micro_batches,
        "batch_size": plan.batch_size,
        "placements": {p.id: {"ranks": list(p.ranks), "mesh": list(p.mesh)} for p in plan.placements},
        "tasks": len(plan.tasks),
        "regsts": {r.id: r.quota for r in plan.regsts},
        "layouts": {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states},
        "search": {
            "method": plan.search.method,
            "cost_model": plan.search.cost_model,
            "objective_s": plan.search.objective_s,
            "lower_bound_s": plan.search.lower_bound_s,
            "covers": covered_text(plan),
        },
        "schedules": [asdict(one) for one in compared_schedules(plan)],
        "interval": objective_interval(plan).to_json(),
        "state_bytes_per_parameter": state_bytes(plan).per_parameter,
        "planned_bytes": {str(rank): size for rank, size in device_bytes(plan).items()},
    }
