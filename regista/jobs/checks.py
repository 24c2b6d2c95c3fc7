"""What a job must be before it is predicted; every refusal names the knob, the numbers and the way out."""

from __future__ import annotations

from planner.ir.errors import Unsupported
from regista.jobs.job import Job, Model, Part, Precision, Recompute
from regista.jobs.machines import Machine
from regista.jobs.recipes import Recipe
from regista.jobs.work.chunks import chunk_layers
from regista.jobs.work.routed import busiest_rank

__all__ = ["checked"]

_MAY_LACK = (
    *("experts", "top_k", "expert_ffn", "shared_ffn", "dense_layers", "ffn"),
    *("encoder", "encoder_seq", "crossed", "attended", "kv_latent", "q_latent", "rope_dim", "value_dim"),
    *("state_dim", "mamba_heads", "mamba_head_dim", "mamba_groups"),
    *("expert_latent", "predicted"),
)

_MOST, _MOST_LAYERS, _MOST_PASSES = 2**24, 4096, 200_000
"""Sizes, layers and passes per step beyond which a job holds a slip of the pen; to plan it would never end."""


def checked(job: Job, machine: Machine) -> Job:
    """The job itself.

    Raises:
        Unsupported: a knob that is impossible or that predictions do not know.   InvalidCluster: the device has no rate for the precision.
    """
    model, at = job.model, job.layout
    for where, value in (("model", model), ("layout", at)):
        for name in type(value).__dataclass_fields__:
            number = getattr(value, name)
            least = 0 if name in _MAY_LACK else 1
            if isinstance(number, int) and not isinstance(number, bool) and not least <= number <= _MOST:
                raise Unsupported(f"{where} {name} = {number}; at least {least} and at most {_MOST} is needed")
    product = at.devices
    if product != job.devices:
        raise Unsupported(
            f"layout tp {at.tp} x cp {at.cp} x dp {at.dp} x pp {at.pp} = {product} is not the {job.devices} devices; their product must be"
        )
    if model.layers + model.encoder > _MOST_LAYERS or at.chunks > _MOST_LAYERS:
        raise Unsupported(f"model layers = {model.layers + model.encoder}, pp x vp = {at.chunks}; at most {_MOST_LAYERS} of each")
    share = at.dp * at.micro_batch
    if at.global_batch % share:
        raise Unsupported(
            f"global_batch {at.global_batch} is no multiple of dp {at.dp} x micro_batch {at.micro_batch} = {share}; each replica needs whole ones"
        )
    if at.micro_batches * at.chunks > _MOST_PASSES:
        raise Unsupported(
            f"global_batch {at.global_batch}: {at.micro_batches} micro-batches x {at.chunks} chunks are more than {_MOST_PASSES} passes per step"
        )
    if not model.ffn and not model.experts:
        raise Unsupported("model ffn = 0 without experts; give ffn, or experts and expert_ffn")
    if model.heads % at.tp:
        raise Unsupported(f"tp {at.tp} does not divide heads {model.heads}; every device needs whole heads")
    if model.seq % (2 * at.cp if at.cp > 1 else 1):
        raise Unsupported(f"cp {at.cp} needs seq {model.seq} in {2 * at.cp} equal parts")
    if at.cp > 1 and not job.running.attention.is_one_kernel:
        raise Unsupported(f"cp {at.cp} with attention {job.running.attention.value}; context parallelism exists with fused attention alone")
    if at.vp > 1 and at.pp == 1:
        raise Unsupported(f"vp {at.vp} with pp 1; chunks are interleaved between stages, so give pp >= 2 or vp 1")
    if at.vp > 1 and not (at.pp <= at.per_round and at.micro_batches % at.per_round == 0):
        raise Unsupported(
            f"vp {at.vp}: {at.micro_batches} micro-batches do not divide into rounds of {at.per_round} on pp {at.pp}; "
            f"use a multiple of pp, or a vp_group of at least pp that divides them"
        )
    layers = chunk_layers(job)
    if len(layers) != at.chunks or sum(layers) != model.layers + model.encoder or min(layers) < 0:
        raise Unsupported(
            f"layers_of_chunks {list(layers)} are {sum(layers)} layers in {len(layers)} chunks; "
            f"the model has {model.layers + model.encoder}, and pp x vp = {at.chunks}"
        )
    if not any(layers):
        raise Unsupported(f"pp {at.pp} x vp {at.vp} chunks for {model.layers} layers; some chunk needs a layer")
    if model.encoder and (at.pp > 1 or at.cp > 1):
        raise Unsupported(
            f"pp {at.pp}, cp {at.cp} with an encoder of {model.encoder} layers; encoder and decoder are predicted with pp = cp = 1"
        )
    _check_experts(job)
    if at.fsdp > 1 and (at.pp > 1 or (at.dp * at.cp) % at.fsdp):
        raise Unsupported(f"fsdp {at.fsdp} with pp {at.pp}, dp {at.dp}, cp {at.cp}: it is predicted where pp = 1 and it divides dp x cp")
    if (model.q_latent or model.rope_dim) and not model.kv_latent:
        raise Unsupported(
            f"q_latent {model.q_latent}, rope_dim {model.rope_dim} without kv_latent; multi-latent attention has all three, q_latent may be 0"
        )
    if model.kv_latent and (model.rope_dim >= model.head_dim or model.kv_heads != model.heads):
        raise Unsupported(
            f"kv_latent {model.kv_latent}: rope_dim {model.rope_dim} is a part of head_dim {model.head_dim}, "
            f"and kv_heads {model.kv_heads} are the heads {model.heads}"
        )
    _check_pattern(model)
    if model.dense_layers and not (model.experts and model.ffn):
        raise Unsupported(f"dense_layers {model.dense_layers}: they are the first of a model with experts, and have ffn, here {model.ffn}")
    if job.running.recompute_layers is not None and job.running.recompute is not Recompute.FULL:
        raise Unsupported(
            f"recompute_layers = {job.running.recompute_layers} belongs to recompute full, here it is {job.running.recompute.value}"
        )
    _check_precision(job, machine)
    return job


def _check_pattern(model: Model) -> None:
    if not model.pattern:
        return
    if unknown := sorted(set(model.pattern) - {part.value for part in Part if part.value}):
        raise Unsupported(f"pattern has {unknown}; M (Mamba-2), * (attention), - (feed-forward) and E (experts) are known")
    if len(model.pattern) != model.layers or model.dense_layers or model.encoder:
        raise Unsupported(
            f"pattern of {len(model.pattern)} letters for {model.layers} layers; each layer has its letter, and no encoder or dense_layers beside it"
        )
    sizes = (model.state_dim, model.mamba_heads, model.mamba_head_dim, model.mamba_groups)
    if "M" in model.pattern and min(sizes) < 1:
        raise Unsupported(f"state_dim, mamba_heads, mamba_head_dim, mamba_groups = {sizes}; Mamba layers (M) need all of them")
    if ("E" in model.pattern) != bool(model.experts) or ("-" in model.pattern and not model.ffn):
        raise Unsupported(
            f"pattern {model.pattern!r} with experts {model.experts}, ffn {model.ffn}; E needs experts, - needs ffn, and no other has them"
        )


def _check_precision(job: Job, machine: Machine) -> None:
    run = job.running
    machine.peak(run.precision)
    if run.precision.is_low and (run.precision is Precision.NVFP4) != (run.recipe is Recipe.NVFP4):
        raise Unsupported(
            f"precision {run.precision.value} with recipe {run.recipe.value}; nvfp4 is the recipe of precision nvfp4, and of no other"
        )
    if run.precision.is_low and run.recipe.scales_in_products and Precision.NVFP4 not in machine.peak_flop_per_s:
        raise Unsupported(
            f"recipe {run.recipe.value}: products of {machine.name} do not multiply scales of blocks, those of devices since Blackwell do; "
            f"use delayed, tensorwise, rowwise or blockwise"
        )


def _check_experts(job: Job) -> None:
    model, at = job.model, job.layout
    if not model.experts:
        if at.ep > 1:
            raise Unsupported(f"ep {at.ep} for a model without experts; leave it out, or give experts, top_k and expert_ffn")
        run = job.running
        given = {
            "overlap_experts": run.overlap_experts,
            "expert_once": run.expert_once,
            "host_experts": run.host_experts,
            "fused_experts": run.fused_experts,
            "sort_experts": run.sort_experts,
            "recompute experts": run.recompute is Recompute.EXPERTS,
            "routing": run.load is not None,
        }
        if knobs := [knob for knob, is_given in given.items() if is_given]:
            raise Unsupported(f"{', '.join(knobs)} for a model without experts; leave out what belongs to them")
        return
    if job.running.host_experts and not job.running.graphs:
        raise Unsupported("host_experts without graphs; without them the host launches everything, so leave it out or set graphs")
    if model.top_k < 1 or model.top_k > model.experts or model.expert_ffn < 1:
        raise Unsupported(
            f"top_k {model.top_k} of experts {model.experts} with expert_ffn {model.expert_ffn}; 1 <= top_k <= experts, expert_ffn >= 1"
        )
    if model.experts % at.ep:
        raise Unsupported(f"ep {at.ep} does not divide experts {model.experts}; every device needs whole ones")
    if (at.tp * at.cp * at.dp) % (at.ep * at.etp):
        raise Unsupported(f"ep {at.ep} x etp {at.etp} does not divide tp x cp x dp = {at.tp * at.cp * at.dp}; expert groups are whole")
    busiest_rank(job)
