"""The verb 'export': traces in the formats of other tools, a Plan as a program of torch, its step as execution traces of Chakra."""

from __future__ import annotations

import argparse
from collections import Counter

from planner.ir.errors import Mismatch, Unsupported
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from planner.ir.text import save_text
from regista.targets import check_targets
from regista.verbs.screen import Json, show
from regista.verbs.showing.traces import traces_of_one_plan

__all__ = ["add_arguments", "perform"]

_FORMS = {"megatron": "MEGATRON", "torchtitan": "TORCHTITAN", "deepspeed": "DEEPSPEED"}
"""Frameworks whose settings are written, and the member of regista.jobs.formats.Form."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces", nargs="+", metavar="FILE", help="traces of one plan, simulated or measured (kineto: one); with --to: a plan"
    )
    parser.add_argument(
        "--to",
        choices=["torch", "dtensor", "chakra", *_FORMS],
        help="torch: one Python file that applies the plan with torch's DTensor, fully_shard or pipelining; "
        "dtensor: the placements of all tensors as a table (.csv, .json, .txt); megatron, torchtitan, deepspeed: the framework's settings; "
        "chakra: a folder with the execution trace of one simulated step per rank (.et), for ASTRA-sim and its like",
    )
    parser.add_argument("--model", help="with --to, but not dtensor and chakra: the model, if it is another than the plan names")
    parser.add_argument("--cost", metavar="FILE", help="with --to chakra: measured prices (regista calibrate)")
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
    if args.cost is not None and args.to != "chakra":
        raise Unsupported("--cost goes with --to chakra, which simulates a step; nothing else that is exported has prices")
    if args.to == "torch":
        return _torch(args)
    if args.to in _FORMS:
        return _settings(args)
    if args.model is not None:
        raise Unsupported(
            "--model goes with --to torch, megatron, torchtitan and deepspeed; traces know their plan, and placements follow from the plan alone"
        )
    if args.to == "chakra":
        return _chakra(args)
    if args.to is not None:
        return _dtensor(args)
    return _kineto(args) if args.format == "kineto" else _perfetto(args)


def _one_plan(args: argparse.Namespace, *, folder: bool = False) -> Plan:
    """folder: whether one is written into."""
    if len(args.traces) != 1:
        raise Unsupported(f"--to takes one plan; {len(args.traces)} files are given")
    (given,) = args.traces
    if not folder:
        check_targets([args.out], [given])
    return load_plan(given)


def _dtensor(args: argparse.Namespace) -> Json:
    from regista.frameworks import dtensor_rows, dtensor_text

    plan = _one_plan(args)
    rows = dtensor_rows(plan)
    save_text(args.out, dtensor_text(rows, args.out))
    show(args, f"wrote {args.out}: DTensor placements of {len(rows)} tensors")
    return {"out": args.out, "plan_id": plan.plan_id, "to": args.to, "rows": len(rows)}


def _settings(args: argparse.Namespace) -> Json:
    from regista.frameworks import job_for, planned_job
    from regista.jobs.formats import Form, flags_text, write_flags

    plan, form = _one_plan(args), Form[_FORMS[args.to]]
    planned = planned_job(plan, args.model)
    job = job_for(form, planned.job)
    written = write_flags(job, form, plan.cluster.name)
    if written.lost:
        raise Unsupported(f"{form.value} cannot express this plan: {'; '.join(written.lost)}")
    save_text(args.out, flags_text(written, job, form))
    at = job.layout
    split = f"tensor {at.tp}, context {at.cp}, pipeline {at.pp}, data {at.dp}; {at.micro_batches} micro-batches of {at.micro_batch}"
    notes = [f"laid out otherwise by the framework: {words}" for words in planned.otherwise]
    show(args, f"wrote {args.out}: {form.value}, {split}", *notes)
    return {"out": args.out, "plan_id": plan.plan_id, "to": args.to, "settings": dict(written.flags), "otherwise": list(planned.otherwise)}


def _chakra(args: argparse.Namespace) -> Json:
    from planner.cost import AnalyticCost, load_prices
    from regista.chakra import NodeKind, chakra_trace, save_chakra
    from regista.chakra.schema import messages

    messages()  # a missing package is said before the step is simulated
    plan, (given,) = _one_plan(args, folder=True), args.traces
    cost = load_prices(args.cost, plan.cluster) if args.cost else AnalyticCost(plan.cluster)
    trace = chakra_trace(plan, cost)
    save_chakra(trace, args.out)
    counts = Counter(node.kind for nodes in trace.nodes.values() for node in nodes)
    said = ", ".join(f"{counts[kind]} {kind.name.lower()}" for kind in NodeKind if counts[kind])
    show(
        args,
        f"wrote {len(trace.nodes)} execution traces of one step of {given} and {len(trace.groups)} process groups into {args.out}: {said}",
        f"ASTRA-sim: --workload-configuration={args.out}/trace --comm-group-configuration={args.out}/comm_groups.json",
    )
    return {
        "out": args.out,
        "plan_id": plan.plan_id,
        "to": args.to,
        "ranks": len(trace.nodes),
        "groups": len(trace.groups),
        "nodes": {kind.name.lower(): counts[kind] for kind in NodeKind if counts[kind]},
    }


def _torch(args: argparse.Namespace) -> Json:
    from regista.frameworks import torch_file, torch_split
    from regista.programs import planned_program

    plan = _one_plan(args)
    split = torch_split(plan, planned_program(plan, args.model))
    save_text(args.out, torch_file(split))
    show(
        args,
        f"wrote {args.out}: {split.way.value}; torchrun --nproc-per-node {plan.num_ranks} {args.out} trains three steps of {plan.model}",
    )
    return {"out": args.out, "plan_id": plan.plan_id, "to": args.to, "way": split.way.value}


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
