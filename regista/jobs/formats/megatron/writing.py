"""A job -> Megatron-LM's arguments; what no argument says is named."""

from __future__ import annotations

from regista.jobs.formats.canonical import canonical
from regista.jobs.formats.megatron.layout_text import layout_of_layers
from regista.jobs.formats.megatron.model import VOCAB, Script
from regista.jobs.formats.megatron.reading import DEFERRED, RECIPES
from regista.jobs.formats.values import Written, expert_knobs
from regista.jobs.job import Attention, Job, Model, Part, Precision, Recompute, Running
from regista.jobs.work.chunks import chunk_layers

__all__ = ["MODEL_FLAGS", "megatron_flags", "script_of"]

_BACKENDS = {Attention.FUSED: "fused", Attention.FLASH: "flash", Attention.UNFUSED: "unfused"}
_ADAM = {8: "fp32", 4: "bf16"}
MODEL_FLAGS = frozenset(
    (
        *("num-layers", "encoder-num-layers", "decoder-num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "kv-channels"),
        *("group-query-attention", "num-query-groups", "seq-length", "encoder-seq-length", "decoder-seq-length", "max-position-embeddings"),
        *("vocab-size", "swiglu", "untie-embeddings-and-output-weights", "position-embedding-type", "num-experts", "moe-router-topk"),
        *("moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-layer-freq", "multi-latent-attention", "kv-lora-rank"),
        *(
            "q-lora-rank",
            "qk-head-dim",
            "qk-pos-emb-head-dim",
            "v-head-dim",
            "hybrid-override-pattern",
            "mamba-state-dim",
            "mamba-num-heads",
        ),
        *("mamba-head-dim", "mamba-num-groups", "attention-dropout", "hidden-dropout"),
    )
)
"""Those that say what is trained, not how."""


def script_of(model: Model) -> Script:
    return "t5" if model.encoder else "mamba" if model.pattern else "gpt" if model.causal else "bert"


def megatron_flags(job: Job) -> Written:
    """The arguments of a job, without dashes; flags without a value are True.

    Raises:
        RegistaError: never; what cannot be expressed is in ``lost``.
    """
    job = canonical(job)
    lost: list[str] = []
    flags = _model(job.model, lost) | _layout(job, lost) | _running(job, lost)
    return Written(flags={name: value for name, value in flags.items() if value not in (None, False)}, lost=tuple(lost))


def _model(model: Model, lost: list[str]) -> dict[str, object]:
    t5 = script_of(model) == "t5"
    if model.attended:
        lost.append(f"documents of {model.attended} tokens packed into a sequence: the data, not an argument, says so")
    if model.value_dim and not model.kv_latent:
        lost.append(f"value_dim {model.value_dim} without multi-latent attention")
    flags: dict[str, object] = {
        "num-layers": None if t5 else model.layers,
        "encoder-num-layers": model.encoder if t5 else None,
        "decoder-num-layers": model.layers if t5 else None,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn or None,
        "num-attention-heads": model.heads,
        "kv-channels": model.head_dim if not model.kv_latent and model.head_dim * model.heads != model.hidden else None,
        "group-query-attention": model.kv_heads != model.heads,
        "num-query-groups": model.kv_heads if model.kv_heads != model.heads else None,
        "seq-length": None if t5 else model.seq,
        "encoder-seq-length": model.encoder_seq if t5 else None,
        "decoder-seq-length": model.seq if t5 else None,
        "max-position-embeddings": max(model.seq, model.encoder_seq),
        "vocab-size": None if VOCAB.get(script_of(model)) == model.vocab else model.vocab,
        "swiglu": model.gated,
        "untie-embeddings-and-output-weights": not model.tied,
        "position-embedding-type": None if model.learned_positions else "rope",
    }
    if model.experts:
        flags |= {
            "num-experts": model.experts,
            "moe-router-topk": model.top_k,
            "moe-ffn-hidden-size": model.expert_ffn,
            "moe-shared-expert-intermediate-size": model.shared_ffn or None,
            "moe-layer-freq": f"([0]*{model.dense_layers}+[1]*{model.layers - model.dense_layers})" if model.dense_layers else None,
        }
    if model.kv_latent:
        flags |= {
            "multi-latent-attention": True,
            "kv-lora-rank": model.kv_latent,
            "q-lora-rank": model.q_latent or None,
            "qk-head-dim": model.head_dim - model.rope_dim,
            "qk-pos-emb-head-dim": model.rope_dim,
            "v-head-dim": model.value_width,
        }
    if model.pattern:
        flags |= {"hybrid-override-pattern": model.pattern}
        if Part.MAMBA.value in model.pattern:
            flags |= {
                "mamba-state-dim": model.state_dim,
                "mamba-num-heads": model.mamba_heads,
                "mamba-head-dim": model.mamba_head_dim,
                "mamba-num-groups": model.mamba_groups,
            }
    return flags


def _layout(job: Job, lost: list[str]) -> dict[str, object]:
    at, layers = job.layout, job.model.layers + job.model.encoder
    flags: dict[str, object] = {
        "tensor-model-parallel-size": at.tp,
        "pipeline-model-parallel-size": at.pp,
        "context-parallel-size": at.cp if at.cp > 1 else None,
        "expert-model-parallel-size": at.ep if at.ep > 1 else None,
        "expert-tensor-parallel-size": at.etp if job.model.experts and at.etp != at.tp else None,
        "microbatch-group-size-per-virtual-pipeline-stage": at.vp_group,
        "micro-batch-size": at.micro_batch,
        "global-batch-size": at.global_batch,
        "sequence-parallel": at.sequence_parallel,
    }
    if at.layers_of_chunks is not None or (at.pp > 1 and layers % at.chunks and (layers + 2) % at.chunks):
        flags["pipeline-model-parallel-layout"] = layout_of_layers(chunk_layers(job))
    else:
        flags["num-virtual-stages-per-pipeline-rank"] = at.vp if at.vp > 1 else None
        if at.pp > 1 and layers % at.chunks:
            flags |= {"account-for-embedding-in-pipeline-split": True, "account-for-loss-in-pipeline-split": True}
    if at.fsdp > 1:
        flags |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": "optim_grads_params"}
        if at.fsdp != at.dp * at.cp:
            lost.append(f"parameters split over {at.fsdp} of {at.dp * at.cp} replicas: Megatron splits them over all")
    if at.direct_gather:
        lost.append("direct_gather: DeepSpeed gathers parameter by parameter")
    return flags


def _running(job: Job, lost: list[str]) -> dict[str, object]:
    run, at = job.running, job.layout
    low = run.precision.is_low
    full = run.recompute is Recompute.FULL
    if run.recompute in (Recompute.DOTS, Recompute.QKV, Recompute.EXPERTS):
        lost.append(f"recompute {run.recompute.value}: Megatron's are full and selective")
    if run.overlap_p2p and at.vp == 1:
        lost.append("messages between stages beside computing: Megatron does so with interleaved stages alone")
    if run.attention not in _BACKENDS:
        lost.append(f"attention {run.attention.value}: what Megatron's kernels do depends on what is installed")
    lost += _unsaid(run)
    if run.overlap_param and not (run.overlap_grad and (run.distributed_optimizer or at.fsdp > 1)):
        lost.append("parameters gathered beside computing: Megatron needs --overlap-grad-reduce and --use-distributed-optimizer for it")
    return {
        "bf16": run.precision is Precision.BF16 or low,
        "fp16": run.precision is Precision.FP16,
        "fp8-format": "hybrid" if run.precision is Precision.FP8 else None,
        "fp8-recipe": {recipe: name for name, recipe in RECIPES.items()}.get(run.recipe) if run.precision is Precision.FP8 else None,
        "fp8-param-gather": run.low_params and run.precision is Precision.FP8,
        "fp4-format": "e2m1" if run.precision is Precision.NVFP4 else None,
        "fp4-param-gather": run.low_params and run.precision is Precision.NVFP4,
        "recompute-granularity": run.recompute.value if full or run.recompute is Recompute.SELECTIVE else None,
        "recompute-method": ("uniform" if run.recompute_layers is None else "block") if full else None,
        "recompute-num-layers": (1 if run.recompute_layers is None else run.recompute_layers) if full else None,
        "use-distributed-optimizer": run.distributed_optimizer,
        "accumulate-allreduce-grads-in-fp32": run.grad_bytes == 4 and run.precision is Precision.FP16,
        "grad-reduce-in-bf16": run.grad_bytes == 2 and run.precision is not Precision.FP16,
        "use-precision-aware-optimizer": run.master_bytes == 2 or run.moment_bytes == 4,
        "main-params-dtype": "fp16" if run.master_bytes == 2 else None,
        "exp-avg-dtype": _ADAM.get(run.moment_bytes) if run.moment_bytes != 8 else None,
        "exp-avg-sq-dtype": _ADAM.get(run.moment_bytes) if run.moment_bytes != 8 else None,
        "overlap-grad-reduce": run.overlap_grad,
        "overlap-param-gather": run.overlap_param and run.overlap_grad and (run.distributed_optimizer or at.fsdp > 1),
        "tp-comm-overlap": run.overlap_tp,
        "no-overlap-p2p-communication": at.vp > 1 and not run.overlap_p2p,
        "attention-backend": _BACKENDS.get(run.attention),
        "attention-dropout": None if run.dropout else "0.0",
        "hidden-dropout": None if run.dropout else "0.0",
        "defer-embedding-wgrad-compute": run.deferred_wgrad > 0,
        "wgrad-deferral-limit": run.deferred_wgrad if run.deferred_wgrad not in (0, DEFERRED) else None,
        "cross-entropy-loss-fusion": run.fused_loss,
        "cross-entropy-fusion-impl": "te" if run.fused_loss else None,
        "cuda-graph-impl": "local" if run.graphs else None,
    }


def _unsaid(run: Running) -> list[str]:
    """Knobs of which Megatron has none, or none that is written here."""
    lost = expert_knobs(run)
    if run.precision is Precision.FP8 and run.recipe not in RECIPES.values():
        lost.append(f"fp8 recipe {run.recipe.value}: Megatron's are {', '.join(RECIPES)}")
    if run.frozen:
        lost.append("adapters alone are trained: Megatron-LM has no argument for it")
    if run.jax:
        lost.append("compiled by XLA")
    if run.bucket_bytes:
        lost.append("buckets of DeepSpeed")
    if run.grad_bytes not in (2, 4):
        lost.append(f"{run.grad_bytes} bytes of gradient per parameter: Megatron's are 2 or 4")
    if run.precision is Precision.FP32 and run.grad_bytes != 4:
        lost.append(f"{run.grad_bytes} bytes of gradient in 32 bits")
    if run.master_bytes not in (2, 4):
        lost.append(f"{run.master_bytes} bytes of master weights per parameter: Megatron's are 4, or 2 with its precision-aware optimizer")
    if run.moment_bytes not in _ADAM:
        lost.append(f"{run.moment_bytes} bytes of moments per parameter: 8 or 4 are expressed")
    return lost
