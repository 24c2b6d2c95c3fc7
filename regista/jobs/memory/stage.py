"""The owners of a device's bytes at a stage's peak, each by name.

allocated     parameters, main gradients, optimizer, gathered parameters and gradients (FSDP2), activations, logits and loss, workspace
beside        CUDA context, NCCL buffers: of the driver, not of PyTorch's allocator
fragmentation what the allocator reserves above what it gives out, at least nothing and at most a share: device_bytes is an interval
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from planner.schedule import PipelineSchedule
from regista.jobs.job import Job
from regista.jobs.machines import Machine
from regista.jobs.memory.activations import activation_peak
from regista.jobs.memory.parameters import Counts, chunk_parameters, stage_parameters
from regista.jobs.work import chunks_of

__all__ = ["Owner", "StageMemory", "stage_memory"]

CONTEXT_BYTES = 600 * 2**20
"""CUDA's context and loaded modules; beside the allocator. [assumed: 0.5 to 0.7 GiB on A100 and H100]"""
NCCL_BYTES = 400 * 2**20
"""Channels and buffers per communicator that is in use. [assumed: 16 to 32 channels of 4 to 10 MiB, both protocols]"""
FRAGMENTATION = 0.08
"""Reserved above allocated, at most: what the allocator rounds and cannot join. [assumed]"""
RATE_LIMIT = 2
"""Layers whose parameters FSDP2 holds gathered at once: the one that computes and the one that is gathered next.  What belongs to no layer (embedding
and head) stays gathered from the forward to the backward pass."""


class Owner(Enum):
    """What fills a device.   GATHERED: layers' parameters that FSDP2 holds whole at once.   UNSHARDED: gradients of a layer before they are split.

    WORKSPACE: cuBLAS's and the attention's, and what else lives between steps.
    """

    PARAMETERS = "parameters"
    GRADIENTS = "main gradients"
    MASTERS = "optimizer: masters"
    MOMENTS = "optimizer: moments"
    GATHERED = "gathered parameters"
    UNSHARDED = "unsharded gradients"
    ACTIVATIONS = "activations"
    LOGITS = "logits and loss"
    WORKSPACE = "workspace of cuBLAS and attention"
    CONTEXT = "CUDA context"
    NCCL = "NCCL buffers"
    FRAGMENTATION = "fragmentation, at most"

    @property
    def is_state(self) -> bool:
        """Alive from step to step."""
        return self in (Owner.PARAMETERS, Owner.GRADIENTS, Owner.MASTERS, Owner.MOMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """allocated: bytes at the stage's peak that the allocator hands out, by owner.   beside: outside of it."""

    allocated: Mapping[Owner, float]
    beside: Mapping[Owner, float]

    @property
    def peak_bytes(self) -> int:
        """torch.cuda.max_memory_allocated."""
        return int(sum(self.allocated.values()))

    @property
    def state_bytes(self) -> float:
        return sum(size for owner, size in self.allocated.items() if owner.is_state)

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Least and most that the device is asked for."""
        beside = sum(self.beside.values())
        return int(self.peak_bytes + beside), int(self.peak_bytes * (1 + FRAGMENTATION) + beside)

    @property
    def owners(self) -> Mapping[str, int]:
        """All owners by name; their sum is the most that the device is asked for."""
        sizes = {**self.allocated, **self.beside, Owner.FRAGMENTATION: FRAGMENTATION * self.peak_bytes}
        return {owner.value: int(size) for owner, size in sizes.items() if size}


def stage_memory(job: Job, machine: Machine, schedule: PipelineSchedule, stage: int) -> StageMemory:
    """The owners of one device of a stage at its peak."""
    at, run = job.layout, job.running
    counts = stage_parameters(job, stage)
    replicas, expert_replicas = at.dp * at.cp, max(1, at.dp * at.cp * at.tp // (at.ep * at.etp))
    trained = 0.0 if run.frozen else 1.0
    shard = (replicas, expert_replicas) if run.distributed_optimizer else (1, 1)
    split, expert_split = at.fsdp, max(1, min(at.fsdp, expert_replicas))
    kept = Counts(counts.dense / split, counts.expert / expert_split, counts.low / split)
    states = (counts.dense / max(shard[0], split) + counts.expert / max(shard[1], expert_split)) * trained
    whole = _whole_at_once(job)
    activations, head = activation_peak(job, schedule, stage)
    allocated = {
        Owner.PARAMETERS: kept.held_bytes(job),
        Owner.GRADIENTS: trained * run.grad_bytes * kept.total,
        Owner.MASTERS: states * run.master_bytes,
        Owner.MOMENTS: states * run.moment_bytes,
        Owner.GATHERED: whole.held_bytes(job) if split > 1 else 0.0,
        Owner.UNSHARDED: trained * (run.precision.value_bytes if run.jax else run.grad_bytes) * whole.total if split > 1 else 0.0,
        Owner.ACTIVATIONS: activations,
        Owner.LOGITS: head,
        Owner.WORKSPACE: float(machine.workspace_bytes + run.bucket_bytes),
    }
    groups = sum(size > 1 for size in (at.tp, at.pp, at.cp, at.ep, at.dp))
    return StageMemory(allocated=allocated, beside={Owner.CONTEXT: float(CONTEXT_BYTES), Owner.NCCL: float(NCCL_BYTES * groups)})


def _whole_at_once(job: Job) -> Counts:
    """Parameters that FSDP2, which has one stage, holds whole at once; XLA gathers the ends when they are read, too."""
    (chunk,) = chunks_of(replace(job, layout=replace(job.layout, vp=1, pp=1, layers_of_chunks=None)))
    layers = chunk_parameters(job, replace(chunk, embeds=False, predicts=False))
    ends = chunk_parameters(job, chunk).total - layers.total
    share = min(1.0, RATE_LIMIT / max(1, job.model.layers + job.model.encoder))
    if job.running.jax:
        ends = 0.0
    return Counts(share * layers.dense + ends, share * layers.expert, share * layers.low)
