"""A Plan as a Slurm batch script: srun starts one launcher per machine, and each starts that machine's ranks.

sbatch plan.sbatch --> srun --> node 0: regista run plan.json --nnodes N --rdzv node0:port --node-rank 0     (hosts the rendezvous)
                                node 1: regista run ...                                    --node-rank 1
"""

from __future__ import annotations

import shlex

from planner.ir.plan import Plan
from regista.deploy.layout import NodeLayout
from regista.origin import names_code

__all__ = ["sbatch_script"]


def sbatch_script(plan: Plan, plan_path: str, layout: NodeLayout, *, steps: int, image: str | None = None) -> str:
    """The script's text.

    Args:
        plan_path: where all nodes see the plan file; absolute.
        image: a container image for srun's --container-image (the Pyxis plugin); None: regista is installed on the nodes.
    """
    name = f"regista-{plan.plan_id[:12]}"
    gpus = [f"#SBATCH --gpus-per-node={layout.gpus_per_node}"] if layout.gpus_per_node else []
    container = (
        [] if image is None else [f"--container-image={shlex.quote(image)}", '--container-mounts="$PWD:$PWD"', '--container-workdir="$PWD"']
    )
    srun = ["srun", f"--ntasks={layout.num_nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1", *container]
    lines = [
        "#!/bin/bash",
        f"# Plan {plan.plan_id}: {layout.num_nodes} nodes, {layout.ranks_per_node} ranks on each.",
        f"# The plan file and the model ({_comment(plan.model)}) must be where all nodes see them.",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={layout.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={layout.ranks_per_node}",
        *gpus,
        "#SBATCH --output=%x-%j.log",
        "set -euo pipefail",
        f"plan={shlex.quote(plan_path)}",
        *_start(layout, " ".join(srun), f"--steps {steps}{' --trust' if names_code(plan) else ''}"),
    ]
    return "\n".join(lines) + "\n"


def _start(layout: NodeLayout, srun: str, options: str) -> list[str]:
    out = '-o "trace-$SLURM_JOB_ID.json"'
    if layout.num_nodes == 1:
        return [f'{srun} regista run "$plan" {options} {out}']
    return [
        'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "# Two jobs that share a node must not share a port.",
        "port=$((20000 + SLURM_JOB_ID % 20000))",
        "# A secret of this job, which srun hands to its tasks in their environment; whoever does not know it cannot join.",
        "export REGISTA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')",
        "# $SLURM_NODEID is another one in every task of srun, so it is read there.",
        f"{srun} bash -c '",
        f'  exec regista run "$1" {options} --nnodes {layout.num_nodes} --node-rank "$SLURM_NODEID" \\',
        f'    --rdzv "$2" --run-id "slurm-$SLURM_JOB_ID" {out}',
        '\' regista-launcher "$plan" "${nodes[0]}:$port"',
    ]


def _comment(text: str) -> str:
    """On one line."""
    return " ".join(text.split())
