"""How the answer changes with one knob at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.ir.errors import RegistaError
from regista.jobs.advice.space import Space
from regista.jobs.formats.canonical import canonical
from regista.jobs.formats.deepspeed import BUCKETS
from regista.jobs.job import Attention, Job, Recompute
from regista.jobs.machines import Machine
from regista.jobs.predict import Prediction, predict

__all__ = ["Change", "useful_changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A job with one knob changed, and its prediction."""

    job: Job
    prediction: Prediction


def useful_changes(job: Job, machine: Machine, space: Space, own: Prediction) -> tuple[Change, ...]:
    """All single changes that are of use, the quickest first: those that make the job fit, or that make it quicker and still fit."""
    seen: list[Change] = []
    met = [canonical(job)]
    for one in _changes(job, machine, space):
        if (plain := canonical(one)) in met:
            continue
        met.append(plain)
        try:
            done = predict(one)
        except RegistaError:
            continue
        if done.fits and (not own.fits or done.step_s < 0.995 * own.step_s):
            seen.append(Change(job=one, prediction=done))
    return tuple(sorted(seen, key=lambda change: change.prediction.step_s))


def _changes(job: Job, machine: Machine, space: Space) -> Iterator[Job]:
    at, run = job.layout, job.running

    def laid(**knobs: object) -> Job:
        layout = replace(at, **knobs)  # type: ignore[arg-type]
        held = layout.tp * layout.cp * layout.pp
        return replace(job, layout=replace(layout, dp=max(1, job.devices // held)))

    def running(**knobs: object) -> Job:
        return replace(job, running=replace(run, **knobs))  # type: ignore[arg-type]

    for kind in space.recompute:
        if kind is not Recompute.SELECTIVE or not run.attention.is_one_kernel:
            yield running(recompute=kind, recompute_layers=None)
    if Recompute.FULL in space.recompute and at.chunks < job.model.layers:
        yield running(recompute=Recompute.FULL, recompute_layers=max(1, job.model.layers // at.chunks // 2))
    if at.dp * at.cp > 1 and not run.frozen:
        if not run.distributed_optimizer and at.fsdp == 1 and space.plain:
            yield running(distributed_optimizer=True, bucket_bytes=BUCKETS if space.deepspeed else run.bucket_bytes)
        if at.fsdp == 1 and space.plain and not space.deepspeed and not (run.overlap_grad and run.overlap_param):
            yield running(distributed_optimizer=True, overlap_grad=True, overlap_param=True)
    if space.fused_attention and run.attention is Attention.UNFUSED:
        yield running(attention=Attention.FUSED)
    if at.tp > 1 and not at.sequence_parallel and space.tensor:
        yield laid(sequence_parallel=True)
    for micro in (2 * at.micro_batch, at.micro_batch // 2):
        if micro:
            yield laid(micro_batch=micro)
    if space.tensor:
        for tp in (2 * at.tp, at.tp // 2):
            if tp and (tp <= machine.domain or tp < at.tp):
                etp = at.etp if at.etp != at.tp else tp
                yield laid(tp=tp, etp=etp, sequence_parallel=tp > 1, fsdp=1 if at.fsdp == 1 else max(1, job.devices // tp))
    if space.pipeline and at.fsdp == 1 and not job.model.encoder:
        for pp in (2 * at.pp, at.pp // 2):
            if pp and job.model.layers % pp == 0:
                fits = at.vp if pp > 1 and job.model.layers % (pp * at.vp) == 0 else 1
                yield laid(pp=pp, vp=fits, vp_group=None, layers_of_chunks=None)
    if space.interleaved and at.pp > 1 and at.layers_of_chunks is None:
        beside = replace(run, overlap_p2p=True)  # as frameworks do with interleaved stages
        yield from (replace(laid(vp=vp), running=beside) for vp in (2, 2 * at.vp) if vp > at.vp and job.model.layers % (at.pp * vp) == 0)
    if space.context:
        yield from (laid(cp=cp) for cp in (2 * at.cp, at.cp // 2) if cp and at.fsdp == 1)
    if space.experts and job.model.experts:
        yield from (laid(ep=ep) for ep in (2 * at.ep, at.ep // 2) if ep)
    if space.fsdp and at.pp == 1 and at.dp * at.cp > 1 and (space.plain or at.fsdp == 1) and not space.deepspeed:
        yield laid(fsdp=at.dp * at.cp if at.fsdp == 1 else 1)
