"""One transformer layer on one device, for one micro-batch: Megatron's kernels, forward and backward.

    T = tokens of a micro-batch on a device (micro_batch x seq / cp);  with sequence parallelism T/tp between the products

    norm - [all-gather] - qkv - rope - attention - out - [reduce-scatter] - add - norm - [all-gather] - fc1 - act - fc2 - [reduce-scatter] - add

Sources: Korthikanti et al. 2022 (sequence parallelism, what is gathered again in the backward pass); Lepikhin et al. 2020, GShard (experts).
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from planner.ir.collective import Collective
from regista.jobs.job import Attention, Job, Part, Recompute
from regista.jobs.recipes import casting
from regista.jobs.work.kernels import AttentionCore, Group, Kernel, Meeting, Product, Ring, Sweep
from regista.jobs.work.mamba import mamba_products, mamba_scan
from regista.jobs.work.routed import busiest_rank

__all__ = ["layer_backward", "layer_forward", "tokens"]


def tokens(job: Job) -> int:
    """Tokens of a micro-batch on one device."""
    return max(1, job.layout.micro_batch * job.model.seq // job.layout.cp)


def _ceil(value: int, parts: int) -> int:
    return max(1, -(-value // parts))


def _between(job: Job) -> int:
    """Tokens that a device holds between the products."""
    at = job.layout
    return _ceil(tokens(job), at.tp) if at.sequence_parallel else tokens(job)


def _inputs(job: Job) -> list[Product]:
    """Of queries, keys and values.  Each tensor-parallel rank makes the latents of its own tokens, which are gathered in place of the tokens."""
    model, at, rows = job.model, job.layout, tokens(job)
    heads, kv_heads = _ceil(model.heads, at.tp), _ceil(model.kv_heads, at.tp)
    if not model.kv_latent:
        return [Product(rows, heads * model.head_dim + kv_heads * (model.head_dim + model.value_width), model.hidden)]
    keys = Product(rows, heads * (model.head_dim - model.rope_dim + model.value_width), model.kv_latent)
    made = [Product(_between(job), model.kv_latent + model.rope_dim, model.hidden), keys]
    if not model.q_latent:
        return [Product(rows, heads * model.head_dim, model.hidden), *made]
    return [Product(_between(job), model.q_latent, model.hidden), Product(rows, heads * model.head_dim, model.q_latent), *made]


def _products(job: Job) -> list[Product]:
    """Of the attention and of a dense feed-forward part; experts stand in _experts."""
    model, at, rows = job.model, job.layout, tokens(job)
    if model.part is Part.MAMBA:
        return mamba_products(job, rows)
    width = _ceil(model.heads, at.tp) * model.value_width
    made = [*_inputs(job), Product(rows, model.hidden, width)] if model.part.attends else []
    if model.crossed:
        keys = 2 * _ceil(model.kv_heads, at.tp) * model.head_dim
        made += [Product(rows, width, model.hidden), Product(rows * model.crossed // model.seq, keys, model.hidden)]
        made.append(Product(rows, model.hidden, width))
    if not model.part.feeds:
        return made
    if not model.experts:
        ffn = _ceil(model.ffn, at.tp)
        made += [Product(rows, (2 if model.gated else 1) * ffn, model.hidden), Product(rows, model.hidden, ffn)]
    elif model.shared_ffn:
        ffn = _ceil(model.shared_ffn, at.tp)
        made += [Product(rows, (2 if model.gated else 1) * ffn, model.hidden), Product(rows, model.hidden, ffn)]
    if model.expert_latent:
        held = _between(job)
        made += [Product(held, model.expert_latent, model.hidden), Product(held, model.hidden, model.expert_latent)]
    return made


def _experts(job: Job) -> list[Product]:
    model, at = job.model, job.layout
    if not model.experts:
        return []
    own = max(1, model.experts // at.ep)
    per_expert = max(1, round(_between(job) * at.ep * at.etp * model.top_k / model.experts))
    if not at.sequence_parallel and at.tp > 1:
        per_expert = max(1, per_expert // at.tp)
    per_expert = max(1, round(per_expert * busiest_rank(job)))
    ffn = _ceil(model.expert_ffn, at.etp)
    return [
        Product(per_expert, (2 if model.gated else 1) * ffn, model.expert_width, count=own, expert=True),
        Product(per_expert, model.expert_width, ffn, count=own, expert=True),
    ]


def _attention(job: Job, *, backward: bool) -> list[Kernel]:
    """Or what a Mamba layer has in its place."""
    if job.model.part is Part.MAMBA:
        return mamba_scan(job, tokens(job), backward=backward)
    if not job.model.part.attends:
        return []
    own = _core(job, job.model.seq, backward=backward)
    return own + _core(job, job.model.crossed, backward=backward) if job.model.crossed else own


def _core(job: Job, keys: int, *, backward: bool) -> list[Kernel]:
    """Attention of a micro-batch's queries to so many keys each."""
    model, at, run = job.model, job.layout, job.running
    heads = _ceil(model.heads, at.tp)
    if run.attention.is_one_kernel:
        seq, kv_heads = model.attended or round(sqrt(model.seq * keys)), _ceil(model.kv_heads, at.tp)
        batch = max(1, at.micro_batch * model.seq // seq) if model.attended else at.micro_batch
        # A kernel for values of another width than the keys' does the work of one for their mean.
        head_dim = (model.head_dim + model.value_width) // 2
        return [AttentionCore(batch, heads, kv_heads, seq, head_dim, model.causal, at.cp, backward)]
    batch, rows = at.micro_batch * heads, max(1, model.seq // at.cp)
    scores = float(run.precision.value_bytes * batch * rows * keys)
    times = 2 if backward else 1
    return [
        Product(rows, keys, model.head_dim, batch=batch, count=times, low=False),
        Product(rows, model.value_width, keys, batch=batch, count=times, low=False),
        _softmax(job, scores, backward=backward),
    ]


def _softmax(job: Job, scores: float, *, backward: bool) -> Sweep:
    """Passes over the scores between the two products.  Stepwise: to 32 bits, scale, mask, softmax, and back, each read and written."""
    run = job.running
    dropout = 2.5 if run.dropout else 0.0
    if run.attention is Attention.STEPWISE:
        wide = 4 / run.precision.value_bytes
        casts = 2 * (1 + wide) if wide > 1 else 0.0
        return Sweep((casts + wide * (7 if backward else 6) + dropout) * scores, count=6)
    return Sweep((2 + dropout) * scores * (1.5 if backward else 1), count=2 if run.dropout else 1)


def _sweeps(job: Job, *, backward: bool) -> list[Kernel]:
    """Norms, additions, rope and the activation, each one pass over what it reads and writes."""
    model, at, run = job.model, job.layout, job.running
    value = run.precision.value_bytes
    stream = float(_between(job) * model.hidden * value)
    heads = (_ceil(model.heads, at.tp) + _ceil(model.kv_heads, at.tp)) * model.head_dim
    # Latents have norms, and queries and keys are put together of a part that is rotated and one that is not.
    heads, ropes = (heads + model.latent_width, 8) if model.kv_latent else (heads, 2)
    rope = 0.0 if model.learned_positions and not model.kv_latent else 2.0 * tokens(job) * heads * value
    if model.experts:
        inner = sum(p.count * p.m * p.k for p in _experts(job)[1:])
        even, most = float(_between(job) * model.top_k * model.expert_width * value), busiest_rank(job)
        # Half of it is done where tokens come from, half where their experts lie.
        routing: list[Kernel] = [
            Sweep(4 * even * (1 + most) / 2 * (1.5 if backward else 1), count=8, expert=True),
            Sweep(float(_between(job) * model.experts * 4 * 6), count=10),
            *_by_expert(job, even * most, inner, backward=backward),
        ]
    else:
        inner, routing = tokens(job) * _ceil(model.ffn, at.tp), []
    act = (3.0 if model.gated else 2.0) * inner * value
    add = (3.0 + (0.5 if run.dropout else 0.0)) * stream
    if model.part is not Part.WHOLE:
        # One norm and one addition of the two of a whole layer.
        norms = [Sweep(6 * stream, 3)] if backward else [Sweep(2 * stream, 1), Sweep(add, 1)]
        if model.part.attends:
            norms.append(Sweep(rope, ropes))
        return [*norms, *([Sweep((5 / 3 if backward else 1) * act, 1, expert=model.experts > 0)] if model.part.feeds else []), *routing]
    if model.crossed:
        routing.append(Sweep((6 if backward else 2) * stream + add, 6 if backward else 4))
    if run.attention is Attention.STEPWISE:
        # Two norms of ten passes in 32 bits; bias and activation of ten passes, too.
        routing += [Sweep(2 * 10 * 4 * stream / value, 20), Sweep(10.0 * inner * value, 5)]
    if backward:
        # A norm reads its input and two gradients and writes one; the activation reads its inputs too.
        return [
            Sweep(2 * 4 * stream, 4),
            Sweep(2 * 2 * stream, 2),
            Sweep(rope, ropes),
            Sweep(5 / 3 * act, 1, expert=model.experts > 0),
            *routing,
        ]
    return [Sweep(2 * 2 * stream, 2), Sweep(2 * add, 2), Sweep(rope, ropes), Sweep(act, 1, expert=model.experts > 0), *routing]


def _by_expert(job: Job, moved: float, inner: float, *, backward: bool) -> list[Kernel]:
    """Passes over tokens at their experts beside permutation and activation.

    Where sort_experts says so, what has come is sorted by expert, and back.   Biases of experts are added to the tokens of one expert after the
    other, each times its token's probability, in 32 bits: bytes per element of t + b p, joined and cast back (_apply_bias in Megatron-Core's
    experts.py); its gradients are a product and a sum each for b and p.   Clamped halves are cut out and joined again before the activation
    (fused_bias_geglu.py).

    Args:
        moved: bytes of all tokens at their experts.   inner: elements between the experts' two products.
    """
    model, at, run = job.model, job.layout, job.running
    own, made = max(1, model.experts // at.ep), list[Kernel]()
    if run.sort_experts and own > 1:
        made.append(Sweep(4 * moved, count=2, expert=True))
    if model.expert_bias and not run.fused_experts:
        elements = moved / run.precision.value_bytes
        made.append(Sweep((40.0 if backward else 28.0) * elements, count=(6 if backward else 3) * own, expert=True))
    if model.clamped and not run.fused_experts:
        made.append(Sweep((20.0 if backward else 16.0) * inner, count=3, expert=True))
    return made


def _meetings(job: Job, *, backward: bool) -> list[Kernel]:
    model, at, run = job.model, job.layout, job.running
    whole = float(tokens(job) * model.hidden * run.precision.value_bytes)
    met: list[Kernel] = []
    crossing = 1 if model.crossed else 0
    dense_parts = crossing + (model.part is not Part.EXPERTS) + (model.part.feeds and not (model.experts and not model.shared_ffn))
    if model.part is Part.FEED_FORWARD:
        dense_parts = 1
    if at.tp > 1 and dense_parts:
        group = Group(at.tp, 1)
        if at.sequence_parallel:
            # The backward pass gathers again what the forward pass had gathered, for the gradients of weights.
            gathers = dense_parts * (2 if backward and not run.frozen else 1)
            # What products read in 8 bits is gathered in 8 bits.
            sent = whole * casting(run.recipe).kept_bytes / 2 if run.overlap_tp and run.precision.is_low else whole
            if model.latent_width and model.part.attends:
                # The attention's gathers carry latents.
                latent = sent * model.latent_width / model.hidden
                met.append(Meeting(Collective.ALL_GATHER, latent, group, beside=run.overlap_tp, count=gathers // dense_parts))
                gathers -= gathers // dense_parts
            met.append(Meeting(Collective.ALL_GATHER, sent, group, beside=run.overlap_tp, count=gathers))
            met.append(Meeting(Collective.REDUCE_SCATTER, whole, group, beside=run.overlap_tp, count=dense_parts))
        else:
            met.append(Meeting(Collective.ALL_REDUCE, whole, group, beside=backward and run.overlap_grad, count=dense_parts))
    if at.cp > 1:
        kept = tokens(job) * _ceil(model.kv_heads, at.tp) * (model.head_dim + model.value_width) * run.precision.value_bytes
        met.append(Ring((2 if backward else 1) * kept, at.cp - 1, Group(at.cp, at.tp)))
    if model.experts and (at.ep > 1 or at.etp > 1):
        sent = float(_between(job) * model.top_k * model.expert_width * run.precision.value_bytes)
        if not at.sequence_parallel and at.tp > 1:
            sent /= at.tp
        sent *= busiest_rank(job)  # an exchange ends when the busiest rank has all that it is sent
        if at.ep > 1:
            # All tokens that the group holds together.
            stride = at.etp if at.etp > 1 else 1
            chosen = model.top_k if run.expert_once else 0
            met.append(
                Meeting(Collective.ALL_TO_ALL, sent * at.ep, Group(at.ep, stride), beside=run.overlap_experts, count=2, chosen=chosen)
            )
        if at.etp > 1:
            met.append(Meeting(Collective.ALL_GATHER, sent * at.etp, Group(at.etp, 1), count=1))
            met.append(Meeting(Collective.REDUCE_SCATTER, sent * at.etp, Group(at.etp, 1), count=1))
    return met


def layer_forward(job: Job) -> tuple[Kernel, ...]:
    """The kernels of one layer's forward pass."""
    return (
        *(replace(p, casts=p.m * p.k) for p in (*_products(job), *_experts(job))),
        *_attention(job, backward=False),
        *_sweeps(job, backward=False),
        *_meetings(job, backward=False),
    )


def layer_backward(job: Job) -> tuple[Kernel, ...]:
    """The kernels of one layer's backward pass, with what it computes again."""
    run = job.running
    made: list[Kernel] = []
    parameters = 0
    for p in (*_products(job), *_experts(job)):
        # The gradient of the result is cast once, for both products; the input was, with its transpose, in the forward pass.
        made.append(Product(p.m, p.k, p.n, count=p.count, expert=p.expert, casts=p.m * p.n))
        if not run.frozen:
            made.append(Product(p.k, p.n, p.m, count=p.count, expert=p.expert))
            parameters += p.count * p.k * p.n
    if parameters:
        made.append(Sweep(2.0 * parameters * run.grad_bytes, count=0))
    made += [*_attention(job, backward=True), *_sweeps(job, backward=True), *_meetings(job, backward=True)]
    return (*made, *_again(job))


def _again(job: Job) -> list[Kernel]:
    """What is computed again before the backward pass of a layer."""
    match job.running.recompute:
        case Recompute.NONE:
            return []
        case Recompute.SELECTIVE:
            return _attention(job, backward=False)
        case Recompute.FULL:
            return list(layer_forward(job))
        case Recompute.EXPERTS:
            model = job.model
            return list(layer_forward(replace(job, model=replace(model, part=Part.EXPERTS)))) if model.experts else []
        case Recompute.DOTS:
            return [*_attention(job, backward=False), *_sweeps(job, backward=False)]
        case Recompute.QKV:
            # What the last product gives is read by no backward pass.
            again = [replace(p, casts=p.m * p.k) for p in _products(job)[1:-1]]
            return [*_attention(job, backward=False), *_sweeps(job, backward=False), *again]
