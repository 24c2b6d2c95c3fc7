"""What each argument of a verb that a server performs is to the server: a value, a file that comes along, a file that is left, or refused.

An argument without a row here is refused by the server (and by a test), so that no new option of a verb reads or writes a file of the server's host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

__all__ = ["PROGRAMS", "SERVED", "Role", "is_arguments", "is_file"]

PROGRAMS = (".pt2", ".mlir")
"""Ends of the names of programs that are data: torch's exported ones and StableHLO."""


class Role(Enum):
    """How a server takes an argument.

    VALUE: as it is.   INPUT: the name of a file that comes with the request.   OUTPUT: the name of a file that the verb leaves.
    MODEL: ``zoo:NAME``, or a program (``.pt2``, ``.mlir``) that comes along; never code by its path.   CLUSTER: a name, or a TOML that comes along.
    SCHEDULE: a name, or a CSV that comes along.   RATES: a schedule of learning rates by its text, never a file of Python.
    VARIABLES: the name of a set of variables that the server keeps between runs.   INIT: first values: the program's own, drawn, or of such a set.
    JOB: a text, or the name of a file that comes along.   DATA: synthetic data; files of data lie with the client.
    REFUSED: is not taken from a client.
    """

    VALUE = "value"
    INPUT = "input"
    OUTPUT = "output"
    MODEL = "model"
    CLUSTER = "cluster"
    SCHEDULE = "schedule"
    RATES = "rates"
    JOB = "job"
    VARIABLES = "variables"
    INIT = "init"
    DATA = "data"
    REFUSED = "refused"


def is_arguments(text: str) -> bool:
    """Whether a job is given as its arguments themselves (``--num-layers 32 ...``), and not as the name of a file."""
    return re.search(r"(^|\s)--[a-z]", text) is not None


def is_file(role: Role, text: str) -> bool:
    """Whether this text of an argument names a file that has to come with the request."""
    match role:
        case Role.INPUT:
            return True
        case Role.MODEL:
            return text.endswith(PROGRAMS)
        case Role.CLUSTER:
            return text.endswith(".toml")
        case Role.SCHEDULE:
            return text.endswith(".csv")
        case _:
            return False


def _roles(
    values: str = "", *, inputs: str = "", outputs: str = "", model: str = "", cluster: str = "", refused: str = "", **other: Role
) -> dict[str, Role]:
    rows = ((values, Role.VALUE), (inputs, Role.INPUT), (outputs, Role.OUTPUT), (model, Role.MODEL), (cluster, Role.CLUSTER))
    named = {name: role for text, role in (*rows, (refused, Role.REFUSED)) for name in text.split()}
    return {"json": Role.VALUE, "full": Role.VALUE, **named, **other}


SERVED: Mapping[str, Mapping[str, Role]] = {
    "plan": _roles(
        "stages mesh micro_batches mode outputs batch_dim precision grad_dtype attention kernels batch_norm recompute context zero cut "
        "balance pin interleave hold quota bucket_mb strict clip_norm clip_value ema loss_scale method robust spread seconds "
        "routing routing_quantile top_k capacity_factor",
        outputs="out picture",
        model="model",
        cluster="cluster",
        schedule=Role.SCHEDULE,
        lr_schedule=Role.RATES,
    ),
    "explain": _roles("op module actors top seconds", inputs="plan", refused="trust"),
    "verify": _roles(inputs="plan", model="model", refused="trust"),
    "diff": _roles(inputs="a b", refused="trust"),
    "predict": _roles(inputs="jobs", outputs="out"),
    "whatif": _roles("set", inputs="plan", outputs="out", refused="trust"),
    "sensitivity": _roles("spread replan steps", inputs="plan", outputs="out picture", cluster="cluster", refused="trust"),
    "quotas": _roles("full_throughput budget pareto seconds", inputs="plan cost", outputs="out"),
    "loading": _roles("load_quota copy", inputs="plan", outputs="out", data=Role.DATA),
    "simulate": _roles("steps engine noise runs seed routing routing_quantile top_k capacity_factor", inputs="plan cost", outputs="out"),
    "compare": _roles("warmup", inputs="sim run", outputs="gantt out"),
    "gantt": _roles("steps memory links streams", inputs="traces", outputs="out"),
    "timeline": _roles("steps", inputs="traces", outputs="out"),
    "report": _roles("warmup", inputs="what", outputs="out"),
    "export": _roles("format to", inputs="traces cost", model="model", outputs="out"),
    "ops": _roles("core", model="model"),
    "clusters": _roles(),
    "advise": _roles("family seq vocab ignore seconds tries", outputs="out", cluster="cluster", job=Role.JOB),
    "run": _roles(
        "steps performer timeout ema save_every keep resume max_restarts allow_nan deterministic ahead trace_steps waiting",
        inputs="plan cost",
        outputs="out outputs",
        refused="trust device graphs tf32 kernels nnodes elastic rdzv node_rank run_id secret",
        data=Role.DATA,
        lr_schedule=Role.RATES,
        init=Role.INIT,
        checkpoint=Role.VARIABLES,
    ),
    "checkpoint": _roles("what optimizer", outputs="out", folder=Role.VARIABLES),
    "iopddl": _roles("seconds", inputs="file", outputs="out"),
}
