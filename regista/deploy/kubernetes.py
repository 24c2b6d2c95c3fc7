"""A Plan as a Kubeflow TrainJob: one pod per machine, in each one launcher, which starts that machine's ranks.

    ConfigMap (plan.json) --mounted at /plan--> pod "node" 0 .. N-1:  regista run /plan/plan.json --nnodes N --rdzv master:port
    Secret NAME, key "secret" --REGISTA_SECRET--'      made by the user once:  kubectl create secret generic NAME --from-literal=secret=...

The runtime ``torch-distributed`` gives every pod PET_MASTER_ADDR, PET_MASTER_PORT and PET_NODE_RANK, as it does for torchrun.
Fields as in Kubeflow Trainer 2.3 (trainer.kubeflow.org/v1alpha1); earlier versions call ``runtimePatches`` by another name.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import yaml  # type: ignore[import-untyped]

from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.ir.units import show_bytes
from regista.deploy.layout import NodeLayout
from regista.origin import names_code

__all__ = ["API_VERSION", "MOST_PLAN_BYTES", "train_job", "train_job_yaml"]

API_VERSION = "trainer.kubeflow.org/v1alpha1"
RUNTIME = "torch-distributed"
JOB = CONTAINER = "node"
"""What the runtime calls its replicated job and the container in it."""
MANAGER = "regista.dev/deploy"

MOST_PLAN_BYTES = 1_000_000
"""A ConfigMap may hold 1 MiB in all [Kubernetes documentation, ConfigMaps]; some of it is for names."""

Json = dict[str, object]


def train_job(plan: Plan, plan_text: str, layout: NodeLayout, *, image: str, steps: int, claim: str | None = None) -> list[Json]:
    """The manifest's documents: a ConfigMap with the plan (none with ``claim``) and the TrainJob.

    Args:
        plan_text: the plan file.   image: a container image that holds regista and the plan's model.
        claim: name of a PersistentVolumeClaim that holds plan.json at its top.

    Raises:
        Unsupported: the plan is too large for a ConfigMap, and no claim is given.
    """
    name = f"regista-{plan.plan_id[:12]}"
    size = len(plan_text.encode())
    if claim is None and size > MOST_PLAN_BYTES:
        raise Unsupported(
            f"the plan has {show_bytes(size)}, a ConfigMap holds {show_bytes(MOST_PLAN_BYTES)}; copy it as plan.json to a volume and give the name of "
            "its PersistentVolumeClaim as --claim"
        )
    held: Json = {"configMap": {"name": name}} if claim is None else {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    limits: Json = {"nvidia.com/gpu": str(layout.gpus_per_node)} if layout.gpus_per_node else {}
    resources: Json = {"requests": {"cpu": str(layout.ranks_per_node)}} | ({"limits": limits} if limits else {})
    job: Json = {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "regista"}, "annotations": {"regista.dev/plan-id": plan.plan_id}},
        "spec": {
            "runtimeRef": {"apiGroup": API_VERSION.partition("/")[0], "kind": "ClusterTrainingRuntime", "name": RUNTIME},
            "trainer": {
                "image": image,
                "numNodes": layout.num_nodes,
                "numProcPerNode": layout.ranks_per_node,
                "command": ["sh", "-c", _command(layout, steps, name, trust=names_code(plan))],
                "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}, *_secret(layout, name)],
                "resourcesPerNode": resources,
            },
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": _patch(held)}],
        },
    }
    if claim is not None:
        return [job]
    config: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"plan.json": plan_text}}
    return [config, job]


def _secret(layout: NodeLayout, name: str) -> list[Json]:
    """The launchers of several pods share a secret, which stands in no manifest."""
    if layout.num_nodes == 1:
        return []
    return [{"name": "REGISTA_SECRET", "valueFrom": {"secretKeyRef": {"name": name, "key": "secret"}}}]


def _command(layout: NodeLayout, steps: int, run_id: str, *, trust: bool) -> str:
    words = ["exec", "regista", "run", "/plan/plan.json", "--steps", str(steps), *(["--trust"] if trust else [])]
    if layout.num_nodes == 1:
        return shlex.join(words)
    words += ["--run-id", run_id]
    meeting = '--rdzv "$PET_MASTER_ADDR:$PET_MASTER_PORT" --node-rank "$PET_NODE_RANK"'
    return f"{shlex.join(words)} --nnodes {layout.num_nodes} {meeting}"


def _patch(held: Json) -> Json:
    """The plan at /plan; and room in /dev/shm, of which a container has 64 MB by itself: registers between processes lie there."""
    volumes = [{"name": "plan"} | held, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "plan", "mountPath": "/plan", "readOnly": True}, {"name": "shm", "mountPath": "/dev/shm"}]
    pod = {"volumes": volumes, "containers": [{"name": CONTAINER, "volumeMounts": mounts}]}
    jobs = [{"name": JOB, "template": {"spec": {"template": {"spec": pod}}}}]
    return {"template": {"spec": {"replicatedJobs": jobs}}}


def train_job_yaml(documents: list[Json], remarks: list[str]) -> str:
    """The documents as YAML, with ``remarks`` as comments on top."""
    head = "".join(f"# {line}\n" for line in remarks)
    return head + "---\n".join(_document(document) for document in documents)


def _document(document: Mapping[str, object]) -> str:
    if document["kind"] != "ConfigMap":
        return str(yaml.safe_dump(document, sort_keys=False, width=100))
    # The plan stays on one line, as in its file: as a block of YAML it would be folded at every blank.
    rest = {key: value for key, value in document.items() if key != "data"}
    data = document["data"]
    assert isinstance(data, dict)
    lines = "".join(f"  {name}: {json.dumps(text)}\n" for name, text in data.items())
    return str(yaml.safe_dump(rest, sort_keys=False)) + "data:\n" + lines
