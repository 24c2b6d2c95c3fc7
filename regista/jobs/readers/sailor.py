"""Rows of sailor_validation: measured iterations and peak bytes of Sailor's Megatron-DeepSpeed on nodes of four GH200 [Strati et al. 2025, SOSP].

layers_per_stage lists the layers of each stage; the first of the model is its embedding and the last its head.  What a row does not say is what that
framework does: OPT-350M and GPT-Neo 2.7B on 2,048 tokens in float16, attention from products and a softmax kernel by kernel, dropout, gradients in
16 bits and a copy in 32 for the update, all-reduced after the last backward pass; messages between stages travel beside computing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.job import Attention, Job, Layout, Model, Precision, Running
from regista.jobs.readers.cells import Row, count

__all__ = ["COLUMNS", "sailor_job"]

COLUMNS = ("cluster", "pipelines", "stages", "layers_per_stage", "dp_per_stage", "tp_per_stage", "gpu_types", "gpus", "mbs", "gbs")
"""Without one of these a file is not of this kind."""

MACHINES = {"GH-96": "gh200"}
_BUCKETS = 2 * 2 * 500_000_000
"""DeepSpeed's reduce_bucket_size and allgather_bucket_size are 500 million elements unless they are set; in 16 bits."""


def _gpt(name: str, layers: int, hidden: int, heads: int, vocab: int) -> Model:
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=vocab,
        seq=2048,
        tied=True,
        learned_positions=True,
    )


MODELS: Mapping[str, Model] = {"OPT-350": _gpt("OPT-350", 24, 1024, 16, 50_272), "GPT-NEO": _gpt("GPT-NEO", 32, 2560, 20, 50_257)}
"""Zhang et al. 2022, OPT, table 1; EleutherAI's GPT-Neo 2.7B."""


def sailor_job(row: Row) -> Job:
    """The job of a row.

    Raises:
        RegistaError: a cell that is impossible, several kinds of device in one job, or a model that is not known.
    """
    machine = MACHINES.get(row["gpu_types"].strip())
    if machine is None:
        raise Unsupported(f"gpu_types {row['gpu_types']!r}: a job has one kind of device; known are {', '.join(MACHINES)}")
    model = MODELS.get(row["model"].strip())
    if model is None:
        raise Unsupported(f"model {row['model']!r} is unknown here; {', '.join(MODELS)} are known")
    stages = count(row, "stages")
    layers = [len(own) for own in _lists(row, "layers_per_stage", stages)]
    layers[0] -= 1
    layers[-1] -= 1
    tps = {tp for own in _lists(row, "tp_per_stage", stages) for tp in own}
    dps = {len(own) for own in _lists(row, "tp_per_stage", stages)}
    if len(tps) != 1 or len(dps) != 1 or count(row, "pipelines", 1) != 1:
        raise Unsupported(
            f"tp_per_stage {row['tp_per_stage']}, pipelines {row['pipelines']}: stages and replicas of one shape are predicted"
        )
    layout = Layout(
        tp=tps.pop(),
        pp=stages,
        dp=dps.pop(),
        micro_batch=count(row, "mbs"),
        global_batch=count(row, "gbs"),
        layers_of_chunks=tuple(layers),
    )
    running = Running(
        precision=Precision.FP16,
        attention=Attention.STEPWISE,
        dropout=True,
        grad_bytes=6,
        bucket_bytes=_BUCKETS,
        environment="sailor",
    )
    return Job(
        name=f"{row['model']} {row['gpus']} GH200", machine=machine, devices=count(row, "gpus"), model=model, layout=layout, running=running
    )


def _lists(row: Row, name: str, stages: int) -> list[list[int]]:
    try:
        value = json.loads(row[name])
    except json.JSONDecodeError:
        value = None
    if not (isinstance(value, list) and len(value) == stages and all(isinstance(own, list) and own for own in value)):
        raise InvalidFile(f"{name} = {row[name]!r}; a JSON list of {stages} lists, one per stage, is needed")
    if not all(isinstance(item, int) for own in value for item in own):
        raise InvalidFile(f"{name} = {row[name]!r}; whole numbers are needed")
    return value
