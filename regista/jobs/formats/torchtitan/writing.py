"""A job -> torchtitan's settings; what they cannot say is named."""

from __future__ import annotations

from regista.jobs.formats.canonical import canonical
from regista.jobs.formats.torchtitan.models import flavor_of, stage_layers
from regista.jobs.formats.torchtitan.reading import CONVERTERS
from regista.jobs.formats.values import Written, expert_knobs
from regista.jobs.job import Attention, Job, Precision, Recompute
from regista.jobs.recipes import Recipe
from regista.jobs.work.chunks import chunk_layers

__all__ = ["torchtitan_flags"]

_BYTES = {(4, 2, 8): "float32", (2, 0, 4): "bfloat16"}
"""Bytes of gradient, master and moments per parameter by training.dtype."""


def torchtitan_flags(job: Job) -> Written:
    """The settings of a job by name."""
    job = canonical(job)
    lost: list[str] = []
    flags = _model(job, lost) | _layout(job, lost) | _running(job, lost)
    return Written(flags={name: value for name, value in flags.items() if value is not None}, lost=tuple(lost))


def _model(job: Job, lost: list[str]) -> dict[str, object]:
    found = flavor_of(job.model)
    if found is None:
        lost.append("the model: torchtitan has no flavor with its numbers")
    name, flavor = found or ("", "")
    return {"model.name": name or None, "model.flavor": flavor or None, "training.seq_len": job.model.seq}


def _layout(job: Job, lost: list[str]) -> dict[str, object]:
    at, where = job.layout, "parallelism.pipeline_parallel_"
    shard = at.fsdp // at.cp if at.pp == 1 else at.dp if job.running.distributed_optimizer else 1
    if at.pp == 1 and (at.fsdp % at.cp or (at.fsdp == 1 and job.running.distributed_optimizer and at.dp * at.cp > 1)):
        lost.append("the optimizer's state alone split over the replicas (ZeRO-1): torchtitan splits parameters, too")
        shard = max(1, shard)
    if at.direct_gather:
        lost.append("direct_gather: DeepSpeed gathers parameter by parameter")
    if at.vp_group is not None:
        lost.append(f"rounds of {at.vp_group} micro-batches in the interleaved schedule")
    if at.tp > 1 and not at.sequence_parallel:
        lost.append("tensor parallel without sequence parallel: releases before 0.3 have no setting for it")
    flags: dict[str, object] = {
        "training.local_batch_size": at.micro_batch if at.pp == 1 else at.global_batch // at.dp,
        "training.global_batch_size": at.global_batch,
        "parallelism.data_parallel_replicate_degree": at.dp // shard,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.tensor_parallel_degree": at.tp,
        "parallelism.pipeline_parallel_degree": at.pp,
        "parallelism.context_parallel_degree": at.cp,
    }
    if job.model.experts:
        flags |= {"parallelism.expert_parallel_degree": at.ep, "parallelism.expert_tensor_parallel_degree": at.etp}
    if at.pp == 1:
        return flags
    flags |= {f"{where}schedule": "1F1B" if at.vp == 1 else "Interleaved1F1B", f"{where}microbatch_size": at.micro_batch}
    layers, total = chunk_layers(job), job.model.layers + 2
    each = -(-total // at.chunks)
    if layers == stage_layers(job.model.layers, at.chunks) and (at.vp <= 2 or -(-total // each) == at.chunks):
        flags[f"{where}layers_per_stage"] = each if at.vp > 2 else None
    else:
        flags["parallelism.module_fqns_per_model_part"] = _parts(layers)
    return flags


def _parts(layers: tuple[int, ...]) -> list[list[str]]:
    """Names of the modules of each stage."""
    parts, begin = [], 0
    for number, count in enumerate(layers):
        own = [f"layers.{i}" for i in range(begin, begin + count)]
        first, last = ["tok_embeddings"] * (number == 0), ["norm", "output"] * (number == len(layers) - 1)
        parts.append([*first, *own, *last])
        begin += count
    return parts


def _running(job: Job, lost: list[str]) -> dict[str, object]:
    run, at = job.running, job.layout
    dtype = _BYTES.get((run.grad_bytes, run.master_bytes, run.moment_bytes))
    if dtype is None:
        lost.append(
            f"{run.grad_bytes} bytes of gradient, {run.master_bytes} of masters, {run.moment_bytes} of moments per parameter: "
            "all in 32 bits or all in bfloat16 are expressed"
        )
    converter = next(
        (
            name
            for name, (kind, recipe) in CONVERTERS.items()
            if kind is run.precision and recipe in (run.recipe, *([Recipe.TENSORWISE] if run.recipe is Recipe.ROWWISE else []))
        ),
        None,
    )
    if run.precision is Precision.FP16 or (run.precision.is_low and converter is None):
        lost.append(f"precision {run.precision.value}, {run.recipe.value}: bfloat16, float32 and float8 by tensor, row or mx are expressed")
    for there, what in (
        (run.attention is not Attention.FUSED, f"attention {run.attention.value}"),
        (run.dropout, "dropout"),
        (run.frozen, "adapters alone are trained"),
        (run.jax, "compiled by XLA"),
        (run.graphs, "CUDA graphs"),
        (run.fused_loss, "a loss in one kernel of Transformer Engine"),
        (bool(run.deferred_wgrad), "deferred gradients of the head"),
        (bool(run.bucket_bytes), "buckets of DeepSpeed"),
        (at.pp > 1 and not run.overlap_p2p, "messages between stages that computing waits for"),
        (not run.overlap_grad and at.dp * at.cp > 1, "gradients that do not travel beside computing"),
    ):
        if there:
            lost.append(what)
    lost += expert_knobs(run)
    flags: dict[str, object] = {
        "training.dtype": "bfloat16" if dtype == "bfloat16" else None,
        "training.mixed_precision_param": "float32" if run.precision is Precision.FP32 else None,
        "parallelism.enable_async_tensor_parallel": True if run.overlap_tp else None,
        "model.converters": [converter] if converter else None,
    }
    if converter:
        flags |= {f"{converter}.recipe_name": "rowwise" if run.recipe is Recipe.ROWWISE else None}
        flags |= {f"{converter}.enable_fsdp_float8_all_gather": True if run.low_params else None}
    return flags | _recompute(job, lost)


def _recompute(job: Job, lost: list[str]) -> dict[str, object]:
    run, where = job.running, "activation_checkpoint."
    each = job.model.layers // job.layout.chunks
    match run.recompute:
        case Recompute.NONE:
            return {f"{where}mode": "none"}
        case Recompute.DOTS:
            return {f"{where}mode": "selective", f"{where}selective_ac_option": "op"}
        case Recompute.FULL if run.recompute_layers is None:
            return {f"{where}mode": "full"}
        case Recompute.FULL if (
            run.recompute_layers and each // max(1, each // run.recompute_layers) == run.recompute_layers and each > run.recompute_layers
        ):
            return {f"{where}mode": "selective", f"{where}selective_ac_option": str(each // run.recompute_layers)}
        case _:
            layers = "" if run.recompute_layers is None else f" of {run.recompute_layers} layers of {each}"
            lost.append(f"recompute {run.recompute.value}{layers}: none, full, every n-th layer and selective by operations are expressed")
            return {f"{where}mode": "full"}
