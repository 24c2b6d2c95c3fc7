"""Which configurations of a job a framework can express, with the model, the batch, the precision and the devices as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from regista.jobs.formats import Form
from regista.jobs.formats.deepspeed import BUCKETS
from regista.jobs.job import Attention, Job, Layout, Recompute, Running
from regista.jobs.machines import Machine

__all__ = ["Space", "candidates", "space_of"]

_WIDEST_MICRO_BATCH, _DEEPEST, _MOST_VP = 16, 64, 12
_LEAST_TOKENS = 1024
"""Of a sequence on one device, below which cutting it further is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a framework's settings can say.   plain: parameters whole without a pipeline, the optimizer's state split.   fsdp: parameters split over
    all replicas.   recompute: of which kinds.   fused_attention: whether an unfused attention can be replaced.

    deepspeed: what is split is gathered one parameter after the other and travels in buckets; only ZeRO-3 gathers beside computing.
    """

    tensor: bool
    pipeline: bool
    interleaved: bool
    context: bool
    experts: bool
    plain: bool
    fsdp: bool
    recompute: tuple[Recompute, ...]
    fused_attention: bool
    deepspeed: bool = False


def space_of(form: Form, job: Job) -> Space:
    """The space of a framework.  What a job does not use and few do (FSDP in Megatron) is not proposed."""
    megatron = Space(
        tensor=True,
        pipeline=True,
        interleaved=True,
        context=True,
        experts=True,
        plain=job.layout.fsdp == 1,
        fsdp=job.layout.fsdp > 1,
        recompute=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
        fused_attention=True,
    )
    match form:
        case Form.TORCHTITAN:
            return replace(
                megatron, plain=True, fsdp=True, recompute=(Recompute.NONE, Recompute.DOTS, Recompute.FULL), fused_attention=False
            )
        case Form.DEEPSPEED:
            return Space(
                tensor=False,
                pipeline=False,
                interleaved=False,
                context=False,
                experts=False,
                plain=True,
                fsdp=True,
                recompute=(Recompute.NONE, Recompute.FULL),
                fused_attention=False,
                deepspeed=True,
            )
        case Form.REGISTA:
            return replace(megatron, plain=True, fsdp=True)
        case _:
            return megatron


def candidates(job: Job, machine: Machine, space: Space) -> Iterator[Job]:
    """All layouts of the space, each with every kind of recomputation."""
    for at in _layouts(job, machine, space):
        for run in _runnings(job, at, space):
            yield replace(job, layout=at, running=run)


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _powers(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length())]


def _layouts(job: Job, machine: Machine, space: Space) -> Iterator[Layout]:
    old, model = job.layout, job.model
    layers = model.layers + model.encoder
    for tp in sorted({old.tp, *(_powers(machine.domain) if space.tensor else ())}):
        if tp != old.tp and (model.heads % tp or model.kv_heads % tp):
            continue
        for cp in sorted({old.cp, *(c for c in (_powers(64) if space.context else ()) if model.seq // c >= _LEAST_TOKENS or c == 1)}):
            for pp in sorted({old.pp, *(_divisors(layers, _DEEPEST) if space.pipeline and not model.encoder else ())}):
                held = tp * cp * pp
                if job.devices % held:
                    continue
                dp = job.devices // held
                if old.global_batch % dp:
                    continue
                for micro in _powers(_WIDEST_MICRO_BATCH):
                    if (old.global_batch // dp) % micro:
                        continue
                    at = replace(old, tp=tp, cp=cp, pp=pp, dp=dp, micro_batch=micro, sequence_parallel=tp > 1, layers_of_chunks=None, vp=1)
                    at = replace(at, fsdp=1, direct_gather=False, vp_group=None)
                    for spread in _spreads(at, old, layers, space):
                        yield from _experts(job, spread, space)


def _spreads(at: Layout, old: Layout, layers: int, space: Space) -> Iterator[Layout]:
    """Chunks of stages, and FSDP where there are none."""
    if at.pp == 1:
        if space.plain or at.dp * at.cp == 1:
            yield at
        if space.fsdp and at.dp * at.cp > 1:
            yield replace(at, fsdp=at.dp * at.cp, direct_gather=old.direct_gather or space.deepspeed)
        return
    if at.pp == old.pp and old.layers_of_chunks is not None:
        yield replace(at, vp=old.vp, layers_of_chunks=old.layers_of_chunks, vp_group=None)
    for vp in _divisors(layers // at.pp, _MOST_VP) if space.interleaved else (1,):
        if layers % (at.pp * vp) == 0 and (vp == 1 or at.micro_batches % at.pp == 0):
            yield replace(at, vp=vp)


def _experts(job: Job, at: Layout, space: Space) -> Iterator[Layout]:
    model, old = job.model, job.layout
    if not model.experts:
        yield replace(at, ep=1, etp=1)
        return
    for ep in sorted({old.ep, *(_divisors(model.experts, 256) if space.experts else ())}):
        for etp in sorted({1, at.tp}):
            if (at.tp * at.cp * at.dp) % (ep * etp) == 0:
                yield replace(at, ep=ep, etp=etp)


def _runnings(job: Job, at: Layout, space: Space) -> Iterator[Running]:
    run = job.running
    sharded = at.dp * at.cp * (at.tp if job.model.experts else 1) > 1
    if space.fused_attention and run.attention is Attention.UNFUSED:
        run = replace(run, attention=Attention.FUSED)
    # Between layouts of one kind, splitting the optimizer's state and sending beside computing never cost more; so they are not a choice.
    changed = not run.distributed_optimizer or not run.overlap_grad or not run.overlap_param
    if sharded and changed and not run.frozen:
        run = replace(run, distributed_optimizer=True, overlap_grad=True, overlap_param=True)
    if space.deepspeed:
        zero3 = at.fsdp > 1
        buckets = 0 if zero3 else run.bucket_bytes or BUCKETS
        run = replace(run, overlap_param=zero3, distributed_optimizer=not zero3, bucket_bytes=buckets if sharded else 0)
    run = replace(run, overlap_p2p=at.vp > 1 or (run.overlap_p2p and job.layout.vp == 1))
    for kind in space.recompute:
        if kind is Recompute.SELECTIVE and run.attention.is_one_kernel:
            continue  # scores never lie in memory
        yield replace(run, recompute=kind, recompute_layers=None)
    if run.recompute is Recompute.FULL and run.recompute_layers is not None:
        yield run
