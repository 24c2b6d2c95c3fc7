"""What a Plan says of its step beside its layouts: whether its batch is padded, and over what batch norm takes its statistics."""

from __future__ import annotations

from planner.ir.graph import Mode
from planner.ir.plan import Plan

__all__ = ["SAMPLES", "batch_norm_text", "padding_text"]

SAMPLES = "samples"
"""The option of a Plan whose batch is padded that says how many samples of it count."""

_RUNNING = ("running_mean", "running_var")


def padding_text(plan: Plan) -> str:
    """What is to be told of the padding; empty: there is none."""
    if SAMPLES not in plan.options:
        return ""
    samples = int(plan.options[SAMPLES])
    added = plan.batch_size - samples
    many = "micro-batches" if plan.micro_batches > 1 else "micro-batch"
    return (
        f"{plan.micro_batches} {many} of {plan.batch_size // plan.micro_batches}: the batch of {samples} samples does not divide, so it is padded "
        f"with {added} that count nothing ({added / plan.batch_size:.1%} of the work); means are over the {samples}"
    )


def batch_norm_text(plan: Plan) -> str:
    """Which statistics the batch norms of a training step use; empty: none keeps running statistics."""
    if plan.mode is Mode.EVAL or not any(state.name.rpartition(".")[2] in _RUNNING for state in plan.states):
        return ""
    if "batch_norm" in plan.options:
        return f"{plan.options['batch_norm']}: statistics of each of these parts of a micro-batch, as under DistributedDataParallel"
    return "global: statistics of the whole micro-batch, as on one device (--batch-norm local takes those of each device's part)"
