"""What is wrong with a job, the gravest first: what keeps it from running, then what costs most of its step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from planner.ir.errors import RegistaError
from planner.ir.units import show_bytes
from regista.jobs.job import Attention, Job, Recompute
from regista.jobs.machines import Machine
from regista.jobs.predict import Prediction, predict

__all__ = ["Fault", "Finding", "find_faults"]

_BUBBLE, _TENSOR, _WIDE, _EXCHANGE, _SENT, _AGAIN = 0.15, 0.10, 0.30, 0.30, 0.15, 0.02
"""Shares of a step from which on they are called wrong."""


class Fault(Enum):
    """What may be wrong."""

    MEMORY = "does not fit"
    TIGHT = "may not fit"
    TENSOR_ACROSS_NODES = "tensor parallel crosses nodes"
    TENSOR_TOO_WIDE = "tensor parallel is too wide"
    BUBBLE = "bubble"
    WAITING = "stages wait"
    RECOMPUTE = "needless recompute"
    EXCHANGE = "experts across nodes"
    GRADIENTS = "gradients are waited for"
    ATTENTION = "attention is unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """cost_s: of the step, what the fault takes; infinite where nothing runs.   text: a sentence with numbers."""

    fault: Fault
    text: str
    cost_s: float


def find_faults(job: Job, machine: Machine, done: Prediction) -> tuple[Finding, ...]:
    """All faults, the gravest first."""
    found = [
        one
        for one in (
            _memory(job, machine, done),
            _tensor(job, machine, done),
            _bubble(job, done),
            _recompute(job, machine, done),
            _exchange(job, machine, done),
            _gradients(job, done),
            _attention(job, done),
        )
        if one is not None
    ]
    return tuple(sorted(found, key=lambda finding: -finding.cost_s))


def _memory(job: Job, machine: Machine, done: Prediction) -> Finding | None:
    stage = max(range(job.layout.pp), key=lambda i: done.stages[i].device_bytes)
    memory = done.stages[stage]
    low, high = memory.device_bytes
    if high <= machine.memory_bytes:
        return None
    owners = sorted((*memory.allocated.items(), *memory.beside.items()), key=lambda entry: -entry[1])[:2]
    most = ", ".join(f"{owner.value} {show_bytes(int(size))}" for owner, size in owners)
    where, there = f"stage {stage}" if job.layout.pp > 1 else "each device", show_bytes(machine.memory_bytes)
    if done.fits:
        text = (
            f"{Fault.TIGHT.value}: {where} needs {show_bytes(low)} to {show_bytes(high)} of {there}, by how memory is fragmented ({most})"
        )
        return Finding(fault=Fault.TIGHT, text=text, cost_s=done.step_s)
    text = f"{Fault.MEMORY.value}: {where} needs {show_bytes(low)} of {there} ({most})"
    return Finding(fault=Fault.MEMORY, text=text, cost_s=float("inf"))


def _share(done: Prediction, name: str) -> float:
    return done.seconds.get(name, 0.0) / done.step_s


def _tensor(job: Job, machine: Machine, done: Prediction) -> Finding | None:
    share, at = _share(done, "tensor-parallel collectives"), job.layout
    if at.tp > machine.domain and share >= _TENSOR:
        text = f"{Fault.TENSOR_ACROSS_NODES.value}: the collectives of {at.tp} ranks on nodes of {machine.domain} devices take {share:.0%} of the step"
        return Finding(fault=Fault.TENSOR_ACROSS_NODES, text=text, cost_s=share * done.step_s)
    if share < _WIDE or at.tp % 2 or not done.fits:
        return None
    half = replace(at, tp=at.tp // 2, dp=2 * at.dp, etp=min(at.etp, at.tp // 2), sequence_parallel=at.sequence_parallel and at.tp > 2)
    try:
        other = predict(replace(job, layout=replace(half, fsdp=2 * at.fsdp if at.fsdp > 1 else 1)))
    except RegistaError:
        return None
    gain = 1 - other.step_s / done.step_s
    if gain < _AGAIN or max(stage.device_bytes[1] for stage in other.stages) > machine.memory_bytes:
        return None
    text = f"{Fault.TENSOR_TOO_WIDE.value}: the collectives of {at.tp} ranks take {share:.0%} of the step, which is {gain:.0%} shorter with {half.tp}"
    return Finding(fault=Fault.TENSOR_TOO_WIDE, text=text, cost_s=gain * done.step_s)


def _bubble(job: Job, done: Prediction) -> Finding | None:
    share = _share(done, "bubble")
    if job.layout.pp == 1 or share < _BUBBLE:
        return None
    at = job.layout
    filling = (at.pp - 1) / at.vp
    if filling / (filling + at.micro_batches) < share / 2:
        text = f"{Fault.WAITING.value} {share:.0%} of the step for each other's messages, or for the slowest of them"
        return Finding(fault=Fault.WAITING, text=text, cost_s=share * done.step_s)
    chunks = f" in {at.vp} chunks each" if at.vp > 1 else ""
    text = f"{Fault.BUBBLE.value} of {share:.0%}: {at.pp} stages{chunks} are filled and emptied by {at.micro_batches} micro-batches"
    return Finding(fault=Fault.BUBBLE, text=text, cost_s=share * done.step_s)


def _recompute(job: Job, machine: Machine, done: Prediction) -> Finding | None:
    """Recomputation without which, or with less of which, the job surely fits and is quicker."""
    if job.running.recompute is Recompute.NONE or not done.fits:
        return None
    for less in (Recompute.NONE, Recompute.SELECTIVE):
        if less is job.running.recompute:
            break
        try:
            other = predict(replace(job, running=replace(job.running, recompute=less, recompute_layers=None)))
        except RegistaError:
            continue
        most = max(stage.device_bytes[1] for stage in other.stages)
        gain = 1 - other.step_s / done.step_s
        if most <= machine.memory_bytes and gain >= _AGAIN:
            instead = "without it" if less is Recompute.NONE else f"with {less.value}"
            text = (
                f"{Fault.RECOMPUTE.value} ({job.running.recompute.value}): {instead} {show_bytes(most)} of "
                f"{show_bytes(machine.memory_bytes)} are filled at most, and the step is {gain:.0%} shorter"
            )
            return Finding(fault=Fault.RECOMPUTE, text=text, cost_s=gain * done.step_s)
    return None


def _exchange(job: Job, machine: Machine, done: Prediction) -> Finding | None:
    share = _share(done, "expert exchange")
    if job.layout.ep * job.layout.etp <= machine.domain or share < _EXCHANGE:
        return None
    text = f"{Fault.EXCHANGE.value}: experts on {job.layout.ep} devices, nodes have {machine.domain}; their exchange takes {share:.0%} of the step"
    return Finding(fault=Fault.EXCHANGE, text=text, cost_s=share * done.step_s)


def _gradients(job: Job, done: Prediction) -> Finding | None:
    share = _share(done, "data-parallel collectives")
    if share < _SENT:
        return None
    why = (
        "they do not travel beside computing"
        if not job.running.overlap_grad
        else f"{job.layout.micro_batches} micro-batches hide no more of them"
    )
    text = f"{Fault.GRADIENTS.value}: gradients and parameters take {share:.0%} of the step; {why}"
    return Finding(fault=Fault.GRADIENTS, text=text, cost_s=share * done.step_s)


def _attention(job: Job, done: Prediction) -> Finding | None:
    if job.running.attention is not Attention.UNFUSED:
        return None
    try:
        other = predict(replace(job, running=replace(job.running, attention=Attention.FUSED)))
    except RegistaError:
        return None
    gain = 1 - other.step_s / done.step_s
    if gain < _AGAIN:
        return None
    return Finding(
        fault=Fault.ATTENTION,
        text=f"{Fault.ATTENTION.value}: with a fused kernel the step is {gain:.0%} shorter",
        cost_s=gain * done.step_s,
    )
