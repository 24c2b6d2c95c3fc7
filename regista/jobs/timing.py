"""Seconds of the tasks of a job's Plan, and of its step.

forward, backward   Prices.pass_s of the chunk's kernels; equal chunks are priced once
send, return        one message over the wire; overlapped ones travel beside computing, others in it
gather, reduce      what of the collective no pass hides: with overlap, all but the first or last bucket travels beside one pass, which it makes longer
update              bytes per parameter of the update / memory, and once per step the constant step_ms
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from planner.ir.collective import Collective
from planner.ir.plan import Plan, Task
from planner.schedule import PipelineSchedule
from regista.jobs.job import Job
from regista.jobs.memory import chunk_parameters, message_bytes
from regista.jobs.pipeline import task_name
from regista.jobs.prices import COLLECTIVE_UNITS, Prices
from regista.jobs.recipes import casting
from regista.jobs.work import (
    AttentionCore,
    CausalConvolution,
    Chunk,
    Group,
    Kernel,
    Meeting,
    Product,
    Ring,
    Scan,
    Sweep,
    chunk_stacks,
    chunks_of,
    layer_backward,
    layer_forward,
)
from regista.jobs.work.chunks import head_backward, head_forward, predictor_layers, stack_counts

__all__ = ["JobCost", "breakdown", "gathers", "job_cost", "reductions"]

BUCKETS = 8
"""Pieces in which gradients and parameters of a chunk travel, where they travel beside computing."""

DIRECT_SHARE, DIRECT_SHARP = 0.7, 2.0
"""What a gather of one parameter after the other reaches of a network port, and how sharply the longer of gathers and computing decides [fitted:
ZeRO-3 in table 2 of Narayanan et al. 2021, 2026-11; either model's rows predict the other's within 15 %]."""

HOOKS = 12
"""Kernels' worth of host time that FSDP takes per layer and collective. [from golden values: 20 to 60 per layer and micro-batch]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """The CostModel of one job: kind and number of a task -> seconds of an act."""

    id: str
    seconds: Mapping[str, float]

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return self.seconds[task.id]

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


def job_cost(job: Job, prices: Prices, plan: Plan) -> JobCost:
    """Price all tasks of the job's Plan."""
    chunks = {chunk.number: chunk for chunk in chunks_of(job)}
    stacks = [replace(job, model=model) for model, _ in job.model.stacks]

    @cache
    def passes(counts: tuple[int, ...], embeds: bool, predicts: bool) -> tuple[float, float]:
        forward = backward = gathered_s = 0.0
        for stack, own in zip(stacks, counts, strict=True):
            forward += prices.pass_s((*layer_forward(stack), *_gathered(stack, 1)), layers=own)
            backward += prices.pass_s((*layer_backward(stack), *_gathered(stack, 2)), layers=own)
            gathered_s += own * _layer_gather_s(stack, prices)
        if predicts:
            forward, backward = forward + prices.pass_s(head_forward(job)), backward + prices.pass_s(head_backward(job))
            for ahead in predictor_layers(job):
                forward += prices.pass_s(layer_forward(ahead), layers=job.model.predicted)
                backward += prices.pass_s(layer_backward(ahead), layers=job.model.predicted)
        if embeds:
            read = Sweep(3 * message_bytes(job) * (job.layout.tp if job.layout.sequence_parallel else 1), 3)
            forward, backward = forward + prices.pass_s([read]), backward + prices.pass_s([read])
        return _beside_s(job, prices, forward, gathered_s), _beside_s(job, prices, backward, 2 * gathered_s)

    def price(task: Task) -> float:
        name = task_name(task)
        if name.kind == "update":
            return _update_s(job, prices, [chunk for chunk in chunks.values() if chunk.stage == name.number])
        chunk = chunks[name.number]
        forward_s, backward_s = passes(stack_counts(job, chunk), chunk.embeds, chunk.predicts)
        match name.kind:
            case "forward":
                return forward_s + _blocked_s(job, prices)
            case "backward":
                return backward_s + _blocked_s(job, prices)
            case "send" | "return":
                return _message_s(job, prices)
            case "gather":
                return _shown(prices, _together_s(prices, gathers(job, chunk)), forward_s, job.running.overlap_param)
            case _:
                return _shown(prices, _together_s(prices, reductions(job, chunk)), backward_s, job.running.overlap_grad)

    return JobCost(id=f"jobs-{prices.machine.name}", seconds={task.id: price(task) for task in plan.tasks})


def _shown(prices: Prices, wire_s: float, beside_s: float, overlap: bool) -> float:
    """What of a collective shows: all of it; or with overlap the first bucket, what is longer than the pass beside which it travels, and by how much it
    makes the pass longer."""
    if not overlap:
        return wire_s
    shown_s = max(wire_s / BUCKETS, wire_s - beside_s)
    return shown_s + prices.taken_s(wire_s - shown_s, COLLECTIVE_UNITS)


def _beside_s(job: Job, prices: Prices, pass_s: float, gathered_s: float) -> float:
    """A pass and what is gathered for it: the longer of the two and what the other takes, and more where parameters come one by one."""
    if job.layout.direct_gather:
        return float((pass_s**DIRECT_SHARP + gathered_s**DIRECT_SHARP) ** (1 / DIRECT_SHARP))
    return prices.beside_s(pass_s, gathered_s, COLLECTIVE_UNITS)


def _message_s(job: Job, prices: Prices) -> float:
    at = job.layout
    if at.pp == 1:
        return 0.0
    group = Group(2, at.tp * at.cp * at.dp)
    return 1e-6 * prices.machine.values["send_us"] + prices.message_s(message_bytes(job), group)


def _blocked_s(job: Job, prices: Prices) -> float:
    """Seconds that a pass waits for its own message where sending does not go on beside computing."""
    return 0.0 if job.running.overlap_p2p else _message_s(job, prices)


def _replicas(job: Job) -> tuple[Group, Group]:
    """Of dense parameters, and of experts."""
    at = job.layout
    over = at.ep * at.etp
    return Group(at.dp * at.cp, at.tp), Group(max(1, at.dp * at.cp * at.tp // over), over)


def gathers(job: Job, chunk: Chunk) -> tuple[Meeting, ...]:
    """The distributed optimizer's all-gathers of a chunk's parameters, once per step."""
    run, at = job.running, job.layout
    if run.frozen or not run.distributed_optimizer or at.fsdp > 1:
        return ()
    counts, (dense, expert) = chunk_parameters(job, chunk), _replicas(job)
    sent = [Meeting(Collective.ALL_GATHER, counts.dense_sent_bytes(job), dense)]
    return (*sent, Meeting(Collective.ALL_GATHER, counts.expert_sent_bytes(job), expert)) if counts.expert else tuple(sent)


def reductions(job: Job, chunk: Chunk) -> tuple[Meeting, ...]:
    """Collectives of a chunk's gradients, once per step: reduced and scattered, or reduced to all."""
    run, at = job.running, job.layout
    if run.frozen:
        return ()
    counts, (dense, expert) = chunk_parameters(job, chunk), _replicas(job)
    if at.fsdp > 1:
        # What lies split is reduced in the passes; replicas of the parts are reduced here.
        outer = Group(at.dp * at.cp // at.fsdp, at.fsdp * at.tp)
        return (Meeting(Collective.ALL_REDUCE, run.grad_bytes * counts.total / at.fsdp, outer),)
    kind = Collective.REDUCE_SCATTER if run.distributed_optimizer else Collective.ALL_REDUCE
    sent = [Meeting(kind, run.grad_bytes * counts.dense, dense)]
    return (*sent, Meeting(kind, run.grad_bytes * counts.expert, expert)) if counts.expert else tuple(sent)


def _together_s(prices: Prices, meetings: tuple[Meeting, ...]) -> float:
    """One after the other."""
    return sum(prices.meeting_s(one.collective, one.total_bytes, one.group) for one in meetings)


def _gathered(job: Job, collectives: int) -> tuple[Sweep, ...]:
    """What FSDP does to a layer's parameters and gradients beside sending them: each is copied to where collectives take it, by hooks of a layer's
    modules.  XLA places them there, and DIRECT_SHARE has it."""
    if job.layout.fsdp == 1 or job.layout.direct_gather or job.running.jax:
        return ()
    layer = Chunk(number=-1, stage=0, first=0, layers=1, embeds=False, predicts=False)
    return (Sweep(2.0 * collectives * job.running.precision.value_bytes * chunk_parameters(job, layer).total, collectives * HOOKS),)


def _layer_gather_s(job: Job, prices: Prices) -> float:
    """Seconds of gathering one layer's parameters where they lie split (FSDP), per pass; the backward pass gathers and reduces."""
    if job.layout.fsdp == 1:
        return 0.0
    layer = Chunk(number=-1, stage=0, first=0, layers=1, embeds=False, predicts=False)
    counts, at = chunk_parameters(job, layer), job.layout
    group, expert = Group(at.fsdp, at.tp), Group(min(at.fsdp, _replicas(job)[1].size), at.ep * at.etp)
    size = counts.dense_sent_bytes(job) + (counts.expert_sent_bytes(job) if expert == group else 0.0)
    apart_s = prices.wire_s(Collective.ALL_GATHER, counts.expert_sent_bytes(job), expert) if expert != group and expert.size > 1 else 0.0
    if job.layout.direct_gather:
        away = 1 - group.members_per_node(prices.machine.domain) / group.size
        port = prices.machine.nic_bytes_per_s * DIRECT_SHARE
        return apart_s + (away * size / port if away > 0 else prices.wire_s(Collective.ALL_GATHER, size, group))
    return apart_s + prices.wire_s(Collective.ALL_GATHER, size, group)


def _update_s(job: Job, prices: Prices, chunks: list[Chunk]) -> float:
    run, at = job.running, job.layout
    once_s = 1e-3 * prices.machine.values["step_ms"]
    if run.frozen:
        return once_s
    counts = [chunk_parameters(job, chunk) for chunk in chunks]
    dense, expert = sum(c.dense for c in counts), sum(c.expert for c in counts)
    if run.distributed_optimizer or at.fsdp > 1:
        split = at.fsdp if at.fsdp > 1 else at.dp * at.cp
        dense, expert = dense / split, expert / max(1, at.dp * at.cp * at.tp // (at.ep * at.etp))
    moved = prices.machine.values["update_bytes"] * (dense + expert)
    if run.precision.is_low and not run.low_params and not run.jax:
        # Parameters are cast once per step.
        moved += casting(run.recipe).cast_bytes * sum(c.low + c.expert for c in counts)
    return once_s + moved / prices.machine.memory_bytes_per_s


def breakdown(job: Job, prices: Prices, plan: Plan, cost: JobCost, schedule: PipelineSchedule, step_s: float) -> Mapping[str, float]:
    """Seconds of the busiest stage by what they go to; "bubble" is the rest of the step."""
    shares: dict[str, float] = {}
    for chunk in chunks_of(job):
        if chunk.stage != job.layout.pp - 1:
            continue
        stacks = chunk_stacks(job, chunk)
        kernels: list[tuple[Kernel, int]] = [(k, own) for stack, own in stacks for k in (*layer_forward(stack), *layer_backward(stack))]
        if chunk.predicts:
            kernels += [(k, 1) for k in (*head_forward(job), *head_backward(job))]
            ahead = predictor_layers(job)
            kernels += [(k, job.model.predicted) for layer in ahead for k in (*layer_forward(layer), *layer_backward(layer))]
        for kernel, times in kernels:
            kind = _kind(kernel)
            shares[kind] = shares.get(kind, 0.0) + job.layout.micro_batches * prices.pass_s([kernel], layers=times)
    once = {name: seconds for name, seconds in cost.seconds.items() if name.startswith(("gather.", "reduce."))}
    shares["data-parallel collectives"] = max((s for n, s in once.items()), default=0.0)
    shares["update"] = cost.seconds[f"update.{job.layout.pp - 1}"]
    shares["bubble"] = max(0.0, step_s - sum(shares.values()))
    return shares


def _kind(kernel: Kernel) -> str:
    match kernel:
        case Product():
            return "matrix products"
        case AttentionCore():
            return "attention"
        case Scan() | CausalConvolution():
            return "scans"
        case Sweep():
            return "memory-bound kernels"
        case Ring():
            return "context-parallel messages"
        case Meeting():
            return "expert exchange" if kernel.collective is Collective.ALL_TO_ALL else "tensor-parallel collectives"
