"""The rivals: one training step by torch's own means, each as its documentation shows it and with its faster options on.

Every rank makes the same module from the program's seed, so all ways begin with the same values, and takes its own part of the global batch.
All use AdamW, torch's fused kernel unless the job says otherwise, and drop gradients between steps (set_to_none).

    data       DistributedDataParallel, gradients as views of their buckets
    dropout    the same; every rank draws masks of its own
    sharded    fully_shard per block and once around all; parameters are freed after a block's forward pass and gathered again
    kept       the same, but parameters stay until the backward pass
    pipeline   PipelineStage and Schedule1F1B, micro-batch gradients averaged
    interleaved     the same with ScheduleInterleaved1F1B: as many stages as the Plan has, stage s on rank s mod p
    zero-bubble     the same with ScheduleZBVZeroBubble: two stages per rank, the later one in the opposite order
    compiled   as data, the wrapped module compiled by inductor (torch.compile's default mode)
    single     the plain loop
    compiled-single   the plain loop, the module compiled by inductor
    mixed      as data, forward and loss under torch.autocast
    mixed-sharded   as sharded, parameters cast to bfloat16 by MixedPrecisionPolicy, gradients reduced in float32
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from experiments.rivals.job import Job, Way
from planner.frontend import Program
from planner.frontend.optim import AdamW
from planner.ir.errors import Unsupported
from regista.api import program_of

__all__ = ["Step", "own_part", "step_of"]

Step = Callable[[tuple[Tensor, ...]], float | None]
"""One step on this rank's part of the batch; returns its mean loss, None where the rank has none."""


class Part(nn.Module):
    """Blocks first ... last - 1 of a zoo GPT, with the embeddings if they are its first and the head if they are its last."""

    def __init__(self, whole: nn.Module, first: int, last: int) -> None:
        super().__init__()
        blocks = list(whole.h)  # type: ignore[arg-type]
        self.h = nn.ModuleList(blocks[first:last])
        self.wte = whole.wte if first == 0 else None
        self.wpe = whole.wpe if first == 0 else None
        self.ln_f = whole.ln_f if last == len(blocks) else None
        self.lm_head = whole.lm_head if last == len(blocks) else None

    def forward(self, x: Tensor) -> Tensor:
        if self.wte is not None and self.wpe is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)) if self.lm_head is not None and self.ln_f is not None else x


def adamw(job: Job, program: Program, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW with the program's numbers.

    Raises:
        Unsupported: the program has another optimizer.
    """
    numbers = program.optimizer
    if not isinstance(numbers, AdamW):
        raise Unsupported(f"the rivals train with AdamW, the program has {type(numbers).__name__}; plan it with optimizer=adamw")
    fused = True if job.fused else None
    return torch.optim.AdamW(
        parameters, lr=numbers.lr, betas=numbers.betas, eps=numbers.eps, weight_decay=numbers.weight_decay, fused=fused
    )


def own_part(job: Job, batch: tuple[Tensor, ...], rank: int) -> tuple[Tensor, ...]:
    """What this rank reads of a global batch: its samples, or all of them where stages share the samples."""
    if job.way.in_stages:
        return batch
    return tuple(part.chunk(job.ranks)[rank].contiguous() for part in batch)


def step_of(job: Job, rank: int) -> Step:
    """Build this rank's model and optimizer; the default process group exists unless there is one rank only."""
    program = program_of(job.model)
    match job.way:
        case Way.MIXED:
            mixed = program.in_formats(job.precision, None)
            return _loop(job, mixed, DistributedDataParallel(program.module, gradient_as_bucket_view=True))
        case Way.MIXED_SHARDED:
            return _loop(job, program, _fully_sharded(program.module, again=True, mixed=True))
        case Way.DATA | Way.DROPOUT:
            return _loop(job, program, DistributedDataParallel(program.module, gradient_as_bucket_view=True))
        case Way.SHARDED | Way.KEPT:
            return _loop(job, program, _fully_sharded(program.module, again=job.way is Way.SHARDED))
        case Way.COMPILED:
            # torch's stubs leave out what a compiled module is: a module.
            return _loop(job, program, torch.compile(DistributedDataParallel(program.module, gradient_as_bucket_view=True)))  # type: ignore[arg-type]
        case Way.PIPELINE | Way.INTERLEAVED | Way.ZERO_BUBBLE:
            return _pipeline(job, program, rank)
        case Way.SINGLE:
            return _loop(job, program, program.module)
        case Way.COMPILED_SINGLE:
            return _loop(job, program, torch.compile(program.module))  # type: ignore[arg-type]  # as above
        case Way.OP_BY_OP:
            raise Unsupported("a Plan whose fragments are performed op by op is performed by this project, not by torch's own means")


def _loop(job: Job, program: Program, module: nn.Module) -> Step:
    optimizer = adamw(job, program, module.parameters())

    def step(batch: tuple[Tensor, ...]) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = program.loss_of(module, batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _fully_sharded(module: nn.Module, *, again: bool, mixed: bool = False) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for block in module.h:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, reshard_after_forward=again, mp_policy=policy)
    fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    return module


def _pipeline(job: Job, program: Program, rank: int) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble

    whole = program.module
    blocks = len(whole.h)  # type: ignore[arg-type]
    bounds = _bounds(job, blocks)
    last = len(bounds) - 2
    ids, _ = program.example_inputs
    samples = ids.shape[0] // job.micro_batches
    width = whole.wte.weight.shape[1]  # type: ignore[union-attr,index]
    between = torch.empty(samples, ids.shape[1], width, requires_grad=True)
    logits = torch.empty(samples, ids.shape[1], whole.lm_head.weight.shape[0], requires_grad=True)  # type: ignore[union-attr,index]
    numbers = _stages_of(job, rank, last + 1)
    parts = nn.ModuleList(Part(whole, bounds[number], bounds[number + 1]) for number in numbers)
    stages = [
        PipelineStage(
            part,
            number,
            last + 1,
            torch.device("cpu"),
            input_args=ids[:samples] if number == 0 else between,
            output_args=logits if number == last else between,
        )
        for number, part in zip(numbers, parts, strict=True)
    ]
    schedule: Schedule1F1B | ScheduleInterleaved1F1B | ScheduleZBVZeroBubble
    match job.way:
        case Way.INTERLEAVED:
            schedule = ScheduleInterleaved1F1B(stages, job.micro_batches, loss_fn=program.loss)
        case Way.ZERO_BUBBLE:
            schedule = ScheduleZBVZeroBubble(stages, job.micro_batches, loss_fn=program.loss)
        case _:
            schedule = Schedule1F1B(stages[0], job.micro_batches, loss_fn=program.loss)
    optimizer = adamw(job, program, parts.parameters())

    def step(batch: tuple[Tensor, ...]) -> float | None:
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        inputs = batch[:1] if 0 in numbers else ()
        if last in numbers:
            schedule.step(*inputs, target=batch[1], losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


def _bounds(job: Job, blocks: int) -> tuple[int, ...]:
    """Numbers of the blocks at which torch's stages begin, and the number of all: our cuts, or a cut at every block for ZB-V's stages."""
    return tuple(range(blocks + 1)) if job.way is Way.ZERO_BUBBLE else (0, *job.cuts, blocks)


def _stages_of(job: Job, rank: int, stages: int) -> list[int]:
    """The stages that a rank of torch's holds: in turn, or there and back for ZB-V."""
    return [rank, stages - 1 - rank] if job.way is Way.ZERO_BUBBLE else list(range(rank, stages, job.ranks))
