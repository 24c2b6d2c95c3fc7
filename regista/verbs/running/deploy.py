"""The verb 'deploy': a plan as a Kubernetes manifest or a Slurm script, or a sweep as a Slurm script.  Nothing is sent anywhere."""

from __future__ import annotations

import argparse
import os

from planner.ir.errors import Unsupported
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from planner.ir.reading import read_text
from planner.ir.text import save_text
from regista.deploy import NodeLayout, node_layout, sbatch_script, sweep_script, train_job
from regista.deploy.kubernetes import train_job_yaml
from regista.origin import check_code
from regista.targets import check_targets
from regista.verbs.arguments import PLAN_HELP, add_trust, count
from regista.verbs.screen import Json, show

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help=f"{PLAN_HELP}; with --sweep the manifest of a sweep (TOML)")
    add_trust(parser)
    parser.add_argument(
        "--sweep", action="store_true", help="slurm: a job that performs the points of a manifest, on several nodes by Dask"
    )
    parser.add_argument("--processes", type=count, metavar="N", help="of --sweep: processes on each node (default 8)")
    parser.add_argument(
        "--kind", required=True, choices=["k8s", "slurm"], help="k8s: a TrainJob of Kubeflow Trainer 2.3; slurm: for sbatch"
    )
    parser.add_argument("--image", metavar="NAME", help="container image that holds regista (k8s: needed; slurm: by the Pyxis plugin)")
    parser.add_argument("--steps", type=count, default=20, help="training steps (default 20)")
    parser.add_argument("--nnodes", type=count, metavar="N", help="machines (default: as many as the plan was made for)")
    parser.add_argument("--claim", metavar="NAME", help="k8s: PersistentVolumeClaim that holds plan.json (default: a ConfigMap)")
    parser.add_argument("-o", "--out", metavar="FILE", help="where it goes (default: standard output)")


def perform(args: argparse.Namespace) -> Json:
    """Read args.plan, write the text to args.out or to standard output; returns the facts and the text for --json.

    Raises:
        Unsupported: an option that the kind does not have, or that it lacks; a plan that is too large for a ConfigMap.
        Untrusted: the plan names code and was not made here; the job would run it.
        Mismatch: --nnodes is not what the plan was made for.   InvalidFile: a file cannot be read or written.
    """
    check_targets([args.out], [args.plan])
    if args.sweep:
        return _sweep(args)
    if args.processes is not None:
        raise Unsupported("--processes belongs to --sweep; a plan says itself how many ranks each node has, leave it out")
    plan = load_plan(args.plan)
    if not plan.model.startswith("zoo:") and not plan.model.endswith((".pt2", ".mlir")) and ".py:" not in plan.model:
        raise Unsupported(
            f"plan {plan.plan_id} was made from a Program of Python named {plan.model!r}, which no file holds; plan file.py:factory instead"
        )
    if "lr_schedule" in plan.options:
        raise Unsupported(
            f"plan {plan.plan_id} takes its learning rates from outside, which a job has no place for; "
            "plan file.py:factory whose Program has lr_schedule="
        )
    check_code(plan)
    layout = node_layout(plan, args.nnodes)
    text = _manifest(args, plan, layout) if args.kind == "k8s" else _script(args, plan, layout)
    _hand_over(args, text)
    return {
        "plan_id": plan.plan_id,
        "kind": args.kind,
        "num_nodes": layout.num_nodes,
        "ranks_per_node": layout.ranks_per_node,
        "gpus_per_node": layout.gpus_per_node,
        "out": args.out,
        "text": text,
    }


def _hand_over(args: argparse.Namespace, text: str) -> None:
    """To the file, or to standard output: there it is the file itself and no screen."""
    if args.out is not None:
        save_text(args.out, text)
        show(args, f"wrote {args.out}; {_next(args)}")
    elif not args.json:
        print(text, end="", flush=True)


def _sweep(args: argparse.Namespace) -> Json:
    from regista.sweep import load_manifest
    from regista.sweep.point import Performer

    for option, value in (("--kind k8s", args.kind == "k8s"), ("--image", args.image), ("--claim", args.claim)):
        if value:
            raise Unsupported(f"{option}: a sweep is written as a Slurm script alone; take --kind slurm without --image and --claim")
    manifest = load_manifest(args.plan)
    is_run = manifest.performer is Performer.RUN
    nodes, processes = args.nnodes or 1, args.processes or (1 if is_run else 8)
    if is_run and (nodes, processes) != (1, 1):
        raise Unsupported(f"the points of {args.plan} are run one after the other on one machine; leave --nnodes and --processes out")
    text = sweep_script(manifest.name, os.path.abspath(args.plan), nodes=nodes, processes=processes)
    _hand_over(args, text)
    facts: Json = {"manifest": manifest.name, "kind": args.kind, "num_nodes": nodes, "processes_per_node": processes, "out": args.out}
    return facts | {"points": len(manifest.points), "text": text}


def _manifest(args: argparse.Namespace, plan: Plan, layout: NodeLayout) -> str:
    if args.image is None:
        raise Unsupported("a TrainJob needs --image NAME: the runtime's own image does not hold regista; give one that does")
    text = read_text(args.plan, "'regista plan' writes one")
    documents = train_job(plan, text, layout, image=args.image, steps=args.steps, claim=args.claim)
    remarks = [
        f"Plan {plan.plan_id}: {layout.num_nodes} nodes, {layout.ranks_per_node} ranks on each; for Kubeflow Trainer 2.3.",
        f"The image must hold regista and the model ({' '.join(plan.model.split())}).",
        "kubectl apply --server-side -f FILE      (without --server-side a copy of the plan must fit into an annotation of 256 KiB)",
    ]
    if layout.num_nodes > 1:
        secret = f"regista-{plan.plan_id[:12]} --from-literal=secret=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')"
        remarks.insert(2, f"kubectl create secret generic {secret}      (what the launchers know and no stranger)")
    return train_job_yaml(documents, remarks)


def _script(args: argparse.Namespace, plan: Plan, layout: NodeLayout) -> str:
    if args.claim is not None:
        raise Unsupported("--claim names a volume of Kubernetes; a Slurm script reads the plan where it lies, leave it out")
    return sbatch_script(plan, os.path.abspath(args.plan), layout, steps=args.steps, image=args.image)


def _next(args: argparse.Namespace) -> str:
    return f"kubectl apply --server-side -f {args.out}" if args.kind == "k8s" else f"sbatch {args.out}"
