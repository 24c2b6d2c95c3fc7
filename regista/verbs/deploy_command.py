"""The verb 'deploy': a plan as a Kubernetes manifest or a Slurm script.  Nothing is sent anywhere."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from planner.ir.errors import Unsupported
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from planner.ir.text import save_text
from regista.deploy import NodeLayout, node_layout, sbatch_script, train_job
from regista.deploy.kubernetes import train_job_yaml
from regista.targets import check_targets

__all__ = ["deploy"]


def deploy(args: argparse.Namespace) -> dict[str, object]:
    """Read args.plan, write the text to args.out or to standard output; returns the facts and the text for --json.

    Raises:
        Unsupported: an option that the kind does not have, or that it lacks; a plan that is too large for a ConfigMap.
        Mismatch: --nnodes is not what the plan was made for.   InvalidFile: a file cannot be read or written.
    """
    check_targets([args.out], [args.plan])
    plan = load_plan(args.plan)
    if not plan.model.startswith("zoo:") and not plan.model.endswith(".pt2") and ".py:" not in plan.model:
        raise Unsupported(
            f"plan {plan.plan_id} was made from a Program of Python named {plan.model!r}, which no file holds; plan file.py:factory instead"
        )
    layout = node_layout(plan, args.nnodes)
    text = _manifest(args, plan, layout) if args.kind == "k8s" else _script(args, plan, layout)
    if args.out is not None:
        save_text(args.out, text)
    if not args.json:
        print(text if args.out is None else f"wrote {args.out}; {_next(args)}", end="" if args.out is None else "\n", flush=True)
    return {
        "plan_id": plan.plan_id,
        "kind": args.kind,
        "num_nodes": layout.num_nodes,
        "ranks_per_node": layout.ranks_per_node,
        "gpus_per_node": layout.gpus_per_node,
        "out": args.out,
        "text": text,
    }


def _manifest(args: argparse.Namespace, plan: Plan, layout: NodeLayout) -> str:
    if args.image is None:
        raise Unsupported("a TrainJob needs --image NAME: the runtime's own image does not hold regista; give one that does")
    text = Path(args.plan).read_text(encoding="utf-8")
    documents = train_job(plan, text, layout, image=args.image, steps=args.steps, claim=args.claim)
    remarks = [
        f"Plan {plan.plan_id}: {layout.num_nodes} nodes, {layout.ranks_per_node} ranks on each; for Kubeflow Trainer 2.3.",
        f"The image must hold regista and the model ({' '.join(plan.model.split())}).",
        "kubectl apply --server-side -f FILE      (without --server-side a copy of the plan must fit into an annotation of 256 KiB)",
    ]
    return train_job_yaml(documents, remarks)


def _script(args: argparse.Namespace, plan: Plan, layout: NodeLayout) -> str:
    if args.claim is not None:
        raise Unsupported("--claim names a volume of Kubernetes; a Slurm script reads the plan where it lies, leave it out")
    return sbatch_script(plan, os.path.abspath(args.plan), layout, steps=args.steps, image=args.image)


def _next(args: argparse.Namespace) -> str:
    return f"kubectl apply --server-side -f {args.out}" if args.kind == "k8s" else f"sbatch {args.out}"
