"""Two jobs are the same if they differ in nothing that does anything: knobs without effect take their usual value."""

from __future__ import annotations

from dataclasses import replace

from regista.jobs.job import Job, Layout, Model, Precision, Recompute, Running
from regista.jobs.recipes import Recipe
from regista.jobs.work.chunks import chunk_layers

__all__ = ["canonical", "differences"]


def canonical(job: Job) -> Job:
    """The job without a name, with every knob that has no effect at its usual value."""
    at, run, model = job.layout, job.running, replace(job.model, name="")
    plain = replace(job, layout=replace(at, layers_of_chunks=None))
    at = replace(
        at,
        layers_of_chunks=None if at.layers_of_chunks == chunk_layers(plain) else at.layers_of_chunks,
        vp_group=None if at.vp == 1 or at.vp_group == at.pp else at.vp_group,
        sequence_parallel=at.sequence_parallel and at.tp > 1,
        ep=at.ep if model.experts else 1,
        etp=at.etp if model.experts else 1,
        direct_gather=at.direct_gather and at.fsdp > 1,
    )
    if not model.experts:
        model = replace(model, top_k=0, expert_ffn=0, shared_ffn=0, dense_layers=0)
    alone = at.dp * at.cp * (at.tp if model.experts else 1) == 1
    run = replace(
        run,
        environment="",
        load=None,  # what tokens choose is no setting
        overlap_grad=run.overlap_grad and not alone,
        overlap_param=run.overlap_param and not alone,
        distributed_optimizer=run.distributed_optimizer and not alone and (at.fsdp == 1 or at.fsdp != at.dp * at.cp),
        overlap_p2p=run.overlap_p2p and at.pp > 1,
        overlap_tp=run.overlap_tp and at.tp > 1,
        recompute_layers=run.recompute_layers if run.recompute is Recompute.FULL else None,
        low_params=run.low_params and run.precision.is_low,
        recipe=Recipe.NVFP4 if run.precision is Precision.NVFP4 else run.recipe if run.precision.is_low else Recipe.DELAYED,
    )
    return replace(job, name="", model=model, layout=at, running=run)


def differences(one: Job, other: Job) -> tuple[str, ...]:
    """The knobs in which two jobs differ, with both values: ``layout.tp 8, 4``."""
    a, b = canonical(one), canonical(other)
    said = [f"{name} {getattr(a, name)}, {getattr(b, name)}" for name in ("machine", "devices") if getattr(a, name) != getattr(b, name)]
    for where in ("model", "layout", "running"):
        x: Model | Layout | Running = getattr(a, where)
        y: Model | Layout | Running = getattr(b, where)
        for field in type(x).__dataclass_fields__:
            if getattr(x, field) != getattr(y, field):
                said.append(f"{where}.{field} {getattr(x, field)}, {getattr(y, field)}")
    return tuple(said)
