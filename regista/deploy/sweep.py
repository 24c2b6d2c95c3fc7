"""A sweep as a Slurm batch script: processes of one machine, or a Dask cluster that lives as long as the job.

sbatch sweep.sbatch --> node 0: dask scheduler, regista sweep --on dask://node0:port        (writes all rows)
                        srun --> every node: dask worker                                    (plans and simulates points)
"""

from __future__ import annotations

import shlex

__all__ = ["sweep_script"]


def sweep_script(name: str, manifest_path: str, *, nodes: int, processes: int) -> str:
    """The script's text.

    Args:
        manifest_path: where all nodes see the manifest, and what it names; absolute.   processes: on each node.
    """
    lines = [
        "#!/bin/bash",
        f"# Sweep {name}: {nodes} nodes, {processes} processes on each.  It goes on where an earlier job stopped.",
        "# The manifest, and models and clusters that it names as files, must be where all nodes see them.",
        f"#SBATCH --job-name=regista-{name}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={processes}",
        "#SBATCH --output=%x-%j.log",
        "set -euo pipefail",
        f"manifest={shlex.quote(manifest_path)}",
        *(_on_dask(nodes, processes) if nodes > 1 else [f'srun regista sweep "$manifest" --jobs {processes}']),
    ]
    return "\n".join(lines) + "\n"


def _on_dask(nodes: int, processes: int) -> list[str]:
    return [
        "# Two jobs that share a node must not share a port.  Whoever reaches it can run code as you: a network of the cluster's own.",
        "port=$((20000 + SLURM_JOB_ID % 20000))",
        "node=$(hostname)",
        'dask scheduler --host "$node" --port "$port" --no-dashboard &',
        "scheduler=$!",
        f'srun --overlap --ntasks={nodes} --ntasks-per-node=1 dask worker "tcp://$node:$port" --nworkers {processes} --nthreads 1 --no-dashboard &',
        "workers=$!",
        'trap \'kill "$workers" "$scheduler"\' EXIT',
        'regista sweep "$manifest" --on "dask://$node:$port"',
    ]
