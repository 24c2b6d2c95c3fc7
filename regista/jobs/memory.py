"""Bytes of one device of each stage, by owner, as Megatron and PyTorch's allocator hold them.

    parameters, main gradients, masters and moments (split over the replicas by the distributed optimizer), activations of the micro-batches
    that the schedule holds at once, logits and loss, what is computed again, workspaces of libraries

Activations of a layer, in bytes per token and hidden element (Korthikanti et al. 2022, section 4, with what Transformer Engine keeps):
norm inputs 2 + 2, their outputs 2 + 2, q k v, output of the attention, fc1, activation, masks of dropout 1 + 1; unfused attention: scores 2,
their mask 1 and what dropout made of them 2, per pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.schedule import PipelineSchedule
from planner.schedule.actions import Pass
from regista.jobs.job import Attention, Job, Recompute
from regista.jobs.machines import Machine
from regista.jobs.work import Chunk, chunks_of, vocab_padded

__all__ = ["StageMemory", "chunk_parameters", "message_bytes", "stage_memory", "stash_bytes"]

CONTEXT_BYTES = 600 * 2**20
"""CUDA's context and loaded modules; beside the allocator. [assumed: 0.5 to 0.7 GiB on A100 and H100]"""
NCCL_BYTES = 400 * 2**20
"""Channels and buffers per communicator that is in use. [assumed: 16 to 32 channels of 4 to 10 MiB, both protocols]"""
FRAGMENTATION = 0.08
"""Reserved above allocated, at most: what the allocator rounds and cannot join. [assumed]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """owners: name -> bytes at the stage's peak, of what the allocator hands out.   beside_bytes: context and NCCL, outside of it."""

    owners: Mapping[str, float]
    beside_bytes: float

    @property
    def peak_bytes(self) -> int:
        """torch.cuda.max_memory_allocated."""
        return int(sum(self.owners.values()))

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Least and most that the device is asked for."""
        return int(self.peak_bytes + self.beside_bytes), int(self.peak_bytes * (1 + FRAGMENTATION) + self.beside_bytes)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Parameters on one device: shared by all replicas; and of experts, which fewer replicas have."""

    dense: float
    expert: float

    @property
    def total(self) -> float:
        return self.dense + self.expert


def chunk_parameters(job: Job, chunk: Chunk) -> _Counts:
    """Of one device, before they are split over replicas."""
    model, at = job.model, job.layout
    norms = 4.0 * model.hidden
    dense = chunk.layers * ((model.dense_parameters - norms) / at.tp + norms)
    if model.encoder:
        # Layers of the decoder attend to the encoder too.
        crossed = model.layers / (model.layers + model.encoder)
        dense += chunk.layers * crossed * model.attention_parameters / at.tp
    table = vocab_padded(job) * model.hidden / at.tp
    if chunk.embeds:
        dense += table + (max(model.seq, model.encoder_seq) * model.hidden if model.learned_positions else 0)
    if chunk.predicts and not (model.tied and chunk.embeds):
        dense += table
    return _Counts(dense, chunk.layers * model.expert_parameters / (at.ep * at.etp))


def _stage_parameters(job: Job, stage: int) -> _Counts:
    mine = [chunk_parameters(job, chunk) for chunk in chunks_of(job) if chunk.stage == stage]
    return _Counts(sum(c.dense for c in mine), sum(c.expert for c in mine))


def message_bytes(job: Job) -> float:
    """What a stage sends the next per micro-batch, from one device."""
    model, at = job.model, job.layout
    rows = at.micro_batch * model.seq / at.cp / (at.tp if at.sequence_parallel else 1)
    return rows * model.hidden * job.running.precision.value_bytes


def _layer_bytes(job: Job) -> float:
    """What one layer keeps of one micro-batch without recomputation."""
    model, at, run = job.model, job.layout, job.running
    value = run.precision.value_bytes
    rows = at.micro_batch * model.seq / at.cp
    between = rows / at.tp if at.sequence_parallel else rows
    width, keys = model.heads * model.head_dim / at.tp, model.kv_heads * model.head_dim / at.tp
    kept = 4 * value * between * model.hidden + value * rows * (2 * width + 2 * keys)
    if run.dropout:
        kept += 2 * between * model.hidden
    if run.attention is not Attention.UNFUSED:
        kept += 4 * at.micro_batch * model.heads / at.tp * model.seq / at.cp
    elif run.recompute is not Recompute.SELECTIVE:
        kept += _score_bytes(job)
    if model.crossed:
        keys_rows = at.micro_batch * model.crossed
        kept += (
            2 * value * between * model.hidden
            + 2 * value * (rows * width + keys_rows * keys)
            + (between * model.hidden if run.dropout else 0)
        )
        if run.attention is Attention.UNFUSED:
            kept += _score_bytes(job) * model.crossed / model.seq
    if model.experts:
        met = between * model.top_k * at.etp / (1 if at.sequence_parallel or at.tp == 1 else at.tp)
        inner = (3 if model.gated else 2) * model.expert_ffn / at.etp
        kept += value * met * (2 * model.hidden + inner) + between * model.experts * 12
        if model.shared_ffn:
            kept += value * rows * (3 if model.gated else 2) * model.shared_ffn / at.tp
    else:
        kept += value * rows * (3 if model.gated else 2) * model.ffn / at.tp
    return kept


def _score_bytes(job: Job) -> float:
    """Scores after softmax, and with dropout their mask and what it made of them."""
    model, at, run = job.model, job.layout, job.running
    per_pair = run.precision.value_bytes * (2 if run.dropout else 1) + (1 if run.dropout else 0)
    return per_pair * at.micro_batch * model.heads / at.tp * model.seq * model.seq / at.cp


def stash_bytes(job: Job, chunk: Chunk) -> float:
    """What a chunk keeps of one micro-batch from its forward to its backward pass."""
    run, value = job.running, job.running.precision.value_bytes
    rows = job.layout.micro_batch * job.model.seq / job.layout.cp
    kept = message_bytes(job) / value * (value + (1 if run.dropout else 0)) if chunk.embeds else 0.0
    stacks = job.model.stacks
    layers = sum(count for _, count in stacks)
    full = sum(count * _layer_bytes(replace(job, model=model)) for model, count in stacks) / max(1, layers)
    match run.recompute:
        case Recompute.FULL:
            again = chunk.layers if run.recompute_layers is None else min(chunk.layers, run.recompute_layers)
            return kept + again * message_bytes(job) + (chunk.layers - again) * full
        case Recompute.QKV:
            model = job.model
            own = value * rows * (model.heads + 2 * model.kv_heads) * model.head_dim / job.layout.tp
            return kept + chunk.layers * (message_bytes(job) + own)
        case _:
            return kept + chunk.layers * full


def _head_bytes(job: Job) -> float:
    """Logits in 16 bits, their copy in 32 on which the loss works."""
    rows = job.layout.micro_batch * job.model.seq / job.layout.cp
    return rows * vocab_padded(job) / job.layout.tp * (job.running.precision.value_bytes + 4) + 2 * message_bytes(job)


def stage_memory(job: Job, machine: Machine, schedule: PipelineSchedule, stage: int) -> StageMemory:
    """The owners of one device of a stage at its peak."""
    at, run = job.layout, job.running
    counts = _stage_parameters(job, stage)
    replicas, expert_replicas = at.dp * at.cp, max(1, at.dp * at.cp * at.tp // (at.ep * at.etp))
    value = run.precision.value_bytes
    trained = 0.0 if run.frozen else 1.0
    shard = (replicas, expert_replicas) if run.distributed_optimizer else (1, 1)
    split = at.fsdp if at.fsdp > 1 else 1
    states = (counts.dense / max(shard[0], split) + counts.expert / max(shard[1], split)) * trained
    gathered = 0.0 if split == 1 else 2 * value * counts.total / max(1, job.model.layers)
    activations, head = _activation_peak(job, schedule, stage)
    owners = {
        "parameters": value * counts.total / split + gathered,
        "main gradients": trained * run.grad_bytes * counts.total / split,
        "masters": states * run.master_bytes,
        "moments": states * run.moment_bytes,
        "activations": activations,
        "logits and loss": head,
        "workspace": float(machine.workspace_bytes),
    }
    groups = sum(size > 1 for size in (at.tp, at.pp, at.cp, at.ep, at.dp))
    return StageMemory(owners=owners, beside_bytes=CONTEXT_BYTES + NCCL_BYTES * groups)


def _activation_peak(job: Job, schedule: PipelineSchedule, stage: int) -> tuple[float, float]:
    """(activations, logits) at the moment at which both together are most."""
    of = {chunk.number: stash_bytes(job, chunk) for chunk in chunks_of(job) if chunk.stage == stage}
    last = job.layout.chunks - 1
    head = _head_bytes(job)
    again = _layer_bytes(job) if job.running.recompute in (Recompute.FULL, Recompute.QKV) else 0.0
    if job.running.recompute is Recompute.SELECTIVE and job.running.attention is Attention.UNFUSED:
        again = _score_bytes(job)
    now, best = 0.0, (0.0, 0.0)
    for action in schedule.orders[stage]:
        forward = action.kind is Pass.FORWARD
        if forward:
            now += of[action.stage]
        here = (now + (0.0 if forward else again), head if action.stage == last else 0.0)
        best = max(best, here, key=sum)
        if action.stage == last and not forward:
            best = max(best, (now, head), key=sum)
        if not forward:
            now -= of[action.stage]
    return best
