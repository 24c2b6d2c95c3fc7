"""Bytes of activations of one device: what a layer keeps of a micro-batch, what a chunk stashes, and the most of both with the logits.

In bytes per token and hidden element (Korthikanti et al. 2022, section 4, with what Transformer Engine keeps): norm inputs 2 + 2, their outputs
2 + 2, q k v, output of the attention, fc1, activation, masks of dropout 1 + 1; unfused attention: scores 2, their mask 1 and what dropout made of
them 2, per pair.  Products in 8 or 4 bits keep their inputs so: outputs of norms and of the activation, and of the attention a second time.
"""

from __future__ import annotations

from dataclasses import replace

from planner.schedule import PipelineSchedule
from planner.schedule.actions import Pass
from regista.jobs.job import Attention, Job, Part, Recompute
from regista.jobs.recipes import casting
from regista.jobs.work import Chunk, chunk_stacks, chunks_of, vocab_padded
from regista.jobs.work.chunks import predictor_layers
from regista.jobs.work.routed import busiest_rank

__all__ = ["activation_peak", "layer_bytes", "message_bytes", "stash_bytes"]


def message_bytes(job: Job) -> float:
    """What a stage sends the next per micro-batch, from one device."""
    model, at = job.model, job.layout
    rows = at.micro_batch * model.seq / at.cp / (at.tp if at.sequence_parallel else 1)
    return rows * model.hidden * job.running.precision.value_bytes


def layer_bytes(job: Job) -> float:
    """What one layer keeps of one micro-batch without recomputation."""
    model, at, run = job.model, job.layout, job.running
    value = run.precision.value_bytes
    rows = at.micro_batch * model.seq / at.cp
    between = rows / at.tp if at.sequence_parallel else rows
    queries, width = model.heads * model.head_dim / at.tp, model.heads * model.value_width / at.tp
    keys = model.kv_heads * (model.head_dim + model.value_width) / 2 / at.tp
    taken = casting(run.recipe).kept_bytes if run.precision.is_low else value
    if model.part is not Part.WHOLE:
        return _part_bytes(job)
    kept = 2 * (value + taken) * between * model.hidden + value * rows * (queries + width + 2 * keys)
    if model.latent_width:
        kept += (value + taken) * rows * model.latent_width
    if run.precision.is_low:
        kept += taken * rows * width
    if run.dropout:
        kept += 2 * between * model.hidden
    if run.attention is Attention.STEPWISE:
        kept += 8 * between * model.hidden  # what the two norms read, in 32 bits
    if run.attention.is_one_kernel:
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
        if not run.attention.is_one_kernel:
            kept += _score_bytes(job) * model.crossed / model.seq
    if model.experts:
        met = between * model.top_k * at.etp / (1 if at.sequence_parallel or at.tp == 1 else at.tp) * busiest_rank(job)
        inner = ((2 if model.gated else 1) * value + taken) * model.expert_ffn / at.etp
        kept += met * ((value + taken) * model.expert_width + inner) + between * (model.experts * 12 + taken * model.expert_latent)
        # Tokens on their way to the experts and back, before they are repeated for each of their experts. [from golden memory]
        kept += 2 * value * met / model.top_k * model.expert_width
        if model.shared_ffn:
            kept += rows * ((2 if model.gated else 1) * value + taken) * model.shared_ffn / at.tp
    else:
        kept += rows * ((2 if model.gated else 1) * value + taken) * model.ffn / at.tp
    return kept


def _part_bytes(job: Job) -> float:
    """What a layer of a hybrid keeps: of a whole layer that has its part alone what is more than of one without; of a Mamba layer, products'
    results, the convolution's and the scan's."""
    model, at, run = job.model, job.layout, job.running
    value, rows = run.precision.value_bytes, at.micro_batch * model.seq / at.cp
    taken = casting(run.recipe).kept_bytes if run.precision.is_low else value
    if model.part is Part.MAMBA:
        norm = (value + taken) * message_bytes(job) / value
        return norm + rows / at.tp * (value * (2 * model.mamba_columns + model.mamba_width) + taken * model.mamba_width)
    none = replace(model, part=Part.WHOLE, heads=0, kv_heads=0, ffn=0, experts=0, top_k=0, shared_ffn=0)
    if model.part is Part.ATTENTION:
        alone = replace(none, heads=model.heads, kv_heads=model.kv_heads)
    elif model.part is Part.FEED_FORWARD:
        alone = replace(none, ffn=model.ffn)
    else:
        alone = replace(none, experts=model.experts, top_k=model.top_k, shared_ffn=model.shared_ffn)
    bare, own = (layer_bytes(replace(job, model=one)) for one in (none, alone))
    return own - bare / 2


def _again_bytes(job: Job) -> float:
    """What a layer with experts does not keep where that part is computed again: all of it but its input."""
    if not job.model.experts:
        return 0.0
    return layer_bytes(replace(job, model=replace(job.model, part=Part.EXPERTS))) - message_bytes(job)


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
    stacks = chunk_stacks(job, chunk)
    full = sum(count * layer_bytes(stack) for stack, count in stacks) / max(1, chunk.layers)
    if chunk.predicts and job.model.predicted:
        # A head that predicts a further token keeps what its layers keep, and state and next token side by side.
        kept += job.model.predicted * (sum(layer_bytes(layer) for layer in predictor_layers(job)) + 2 * message_bytes(job))
    match run.recompute:
        case Recompute.FULL:
            again = chunk.layers if run.recompute_layers is None else min(chunk.layers, run.recompute_layers)
            return kept + again * message_bytes(job) + (chunk.layers - again) * full
        case Recompute.EXPERTS:
            return kept + sum(count * (layer_bytes(stack) - _again_bytes(stack)) for stack, count in stacks)
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


def activation_peak(job: Job, schedule: PipelineSchedule, stage: int) -> tuple[float, float]:
    """(activations, logits) at the moment at which both together are most."""
    of = {chunk.number: stash_bytes(job, chunk) for chunk in chunks_of(job) if chunk.stage == stage}
    last = job.layout.chunks - 1
    head = _head_bytes(job)
    again = layer_bytes(job) if job.running.recompute in (Recompute.FULL, Recompute.QKV) else 0.0
    if job.running.recompute is Recompute.EXPERTS:
        again = max(_again_bytes(replace(job, model=model)) for model, _ in job.model.stacks)
    if job.running.recompute is Recompute.SELECTIVE and not job.running.attention.is_one_kernel:
        again = _score_bytes(job)
    rows = job.layout.micro_batch * job.model.seq / job.layout.cp
    each = rows * vocab_padded(job) / job.layout.tp * job.running.precision.value_bytes + message_bytes(job)
    now, deferred, best = 0.0, 0.0, (0.0, 0.0)
    for action in schedule.orders[stage]:
        forward = action.kind is Pass.FORWARD
        if forward:
            now += of[action.stage]
        here = (now + deferred + (0.0 if forward else again), head if action.stage == last else 0.0)
        best = max(best, here, key=sum)
        if action.stage == last and not forward:
            best = max(best, (now + deferred, head), key=sum)
            deferred = min(deferred + each, job.running.deferred_wgrad * each)
        if not forward:
            now -= of[action.stage]
    return best
