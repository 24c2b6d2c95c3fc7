"""A job -> DeepSpeed's settings; what its JSON cannot say is named."""

from __future__ import annotations

from regista.jobs.formats.canonical import canonical
from regista.jobs.formats.deepspeed.reading import BUCKETS
from regista.jobs.formats.values import Written, expert_knobs
from regista.jobs.job import Attention, Job, Precision, Recompute

__all__ = ["deepspeed_flags"]


def deepspeed_flags(job: Job) -> Written:
    """The settings of a job by name; the model's numbers stand in config.json."""
    job = canonical(job)
    at, run = job.layout, job.running
    zero = 3 if at.fsdp > 1 else 1 if run.distributed_optimizer else 0
    lost = [
        what
        for there, what in (
            (at.devices != at.dp, f"tensor {at.tp}, pipeline {at.pp}, context {at.cp}: the JSON says data parallel alone"),
            (at.ep > 1, f"experts by {at.ep}: the model's code says so"),
            (at.fsdp > 1 and (at.fsdp != at.dp or not at.direct_gather), "parameters split otherwise than ZeRO-3 does"),
            (run.precision.is_low, f"precision {run.precision.value}"),
            (run.recompute not in (Recompute.NONE, Recompute.FULL), f"recompute {run.recompute.value}"),
            (run.recompute_layers is not None, f"recompute of {run.recompute_layers} layers"),
            (run.attention is not Attention.FUSED, f"attention {run.attention.value}: the model's code says so"),
            (run.dropout, "dropout: the model's code says so"),
            (
                run.frozen or run.jax or run.graphs or run.fused_loss or bool(run.deferred_wgrad),
                "adapters, XLA, graphs, fused or deferred parts",
            ),
            ((run.master_bytes, run.moment_bytes) != (4, 8), "masters and moments in fewer than 32 bits"),
            (
                run.grad_bytes not in (2, 4) or (run.grad_bytes == 2 and run.precision is Precision.FP32),
                f"{run.grad_bytes} bytes of gradient",
            ),
            (run.overlap_param is not (zero == 3), "parameters gathered beside computing, or not beside it: ZeRO-3 does so"),
            (bool(run.bucket_bytes) is not (zero == 1), "buckets: they are ZeRO-1's and 2's"),
        )
        if there
    ] + expert_knobs(run)
    flags: dict[str, object] = {
        "train_batch_size": at.global_batch,
        "train_micro_batch_size_per_gpu": at.micro_batch,
        "gradient_accumulation_steps": at.micro_batches,
        "bf16.enabled": True if run.precision is Precision.BF16 else None,
        "fp16.enabled": True if run.precision is Precision.FP16 else None,
        "data_types.grad_accum_dtype": "fp32" if run.grad_bytes == 4 and run.precision is not Precision.FP32 else None,
        "zero_optimization.stage": zero,
        "zero_optimization.overlap_comm": run.overlap_grad,
        "zero_optimization.reduce_bucket_size": run.bucket_bytes // 4 if zero == 1 and run.bucket_bytes != BUCKETS else None,
        "zero_optimization.allgather_bucket_size": run.bucket_bytes // 4 if zero == 1 and run.bucket_bytes != BUCKETS else None,
        # The JSON configures what model.gradient_checkpointing_enable() turns on.
        "activation_checkpointing.partition_activations": False if run.recompute is Recompute.FULL else None,
    }
    return Written(flags={name: value for name, value in flags.items() if value is not None}, lost=tuple(lost))
