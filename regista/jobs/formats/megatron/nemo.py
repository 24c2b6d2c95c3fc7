"""NeMo's recipes (``megatron_gpt_config.yaml`` of its releases 1.x) <-> Megatron-LM's arguments.

Most fields of ``model`` are arguments with other dashes; the others are named here.  ``trainer`` says the devices.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.formats.values import Flags

__all__ = ["is_nemo", "nemo_flags", "nemo_tables"]

_QUIET = ("name", "restore_from_path", "exp_manager", "run", "hydra", "defaults", "cluster_type", "inference")
_RENAMED = {
    "encoder_seq_length": "seq-length",
    "num_moe_experts": "num-experts",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "use_flash_attention": "use-flash-attn",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
}
_INVERSE = {
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
}
_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": "", "32-true": ""}
_WITHOUT_EFFECT = (
    *("mcore_gpt", "tokenizer", "data", "nsys_profile", "pre_process", "post_process", "seed", "resume_from_checkpoint", "onnx_safe"),
    *("apex_transformer_log_level", "megatron_amp_O2", "hysteresis", "use_scaled_init_method", "do_layer_norm_weight_decay", "gc_interval"),
    *("rotary_percentage", "openai_gelu", "transformer_engine", "headscale", "attention_type", "native_amp_init_scale", "precision"),
    *("native_amp_growth_interval", "normalize_attention_scores", "transformer_block_type", "get_attention_mask_from_fusion", "bias"),
    *(
        "gradient_as_bucket_view",
        "grad_div_ar_fusion",
        "grad_allreduce_chunk_size_mb",
        "sync_batch_comm",
        "fp8_e4m3",
        "bias_dropout_add_fusion",
    ),
    *("fp8", "fp8_hybrid", "activation", "num_query_groups", "optim", "reduce_amax", "use_emha", "ffn_dropout", "fsdp"),
)
"""Fields of ``model`` that are read elsewhere, or on which neither time nor memory hangs."""


def is_nemo(data: Mapping[str, object]) -> bool:
    return "trainer" in data and "model" in data


def _table(data: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = data.get(name) or {}
    if not isinstance(table, dict):
        raise InvalidFile(f"{name} is no table")
    return table


def nemo_flags(data: Mapping[str, object], devices: int) -> Flags:
    """The arguments of a recipe.

    Args:
        devices: of the cluster, which must be those of ``trainer``; 0: there is no cluster.

    Raises:
        RegistaError: tables or fields that are not known, or devices that are not those of the cluster.
    """
    if unknown := sorted(str(key) for key in data if key not in ("trainer", "model", *_QUIET)):
        raise Unsupported(f"unknown tables {unknown}; a recipe of NeMo has trainer, model, {', '.join(_QUIET)}")
    trainer, model = _table(data, "trainer"), _table(data, "model")
    nodes, each = trainer.get("num_nodes", 1), trainer.get("devices")
    if devices and isinstance(nodes, int) and isinstance(each, int) and nodes * each != devices:
        raise Unsupported(f"trainer has {nodes} nodes of {each} devices, the cluster {devices}; give the cluster that the recipe is for")
    word = str(trainer.get("precision", "32"))
    if word not in _PRECISIONS:
        raise Unsupported(f"trainer.precision {word!r} is not predicted; known are {', '.join(_PRECISIONS)}")
    flags: dict[str, object] = {_PRECISIONS[word]: True} if _PRECISIONS[word] else {}
    for key, value in model.items():
        if value is None or key in _WITHOUT_EFFECT:
            continue
        if key in _INVERSE:
            flags[_INVERSE[key]] = not value
        elif value is not False:
            flags[_RENAMED.get(str(key), str(key).replace("_", "-"))] = value
    if str(model.get("activation", "gelu")) in _GATED:
        flags["swiglu"] = True
    if (groups := model.get("num_query_groups")) not in (None, model.get("num_attention_heads")):
        flags |= {"group-query-attention": True, "num-query-groups": groups}
    if model.get("fp8"):
        flags["fp8-format"] = "e4m3" if model.get("fp8_e4m3") else "hybrid"
    if model.get("fsdp"):
        raise Unsupported("model.fsdp: NeMo's FSDP is not predicted; set it to false")
    optimizer = _table(model, "optim")
    if optimizer.get("name") == "distributed_fused_adam":
        overlap = bool(optimizer.get("overlap_grad_sync", True))
        flags |= {"use-distributed-optimizer": True, "overlap-grad-reduce": overlap}
        flags["overlap-param-gather"] = overlap and bool(optimizer.get("overlap_param_sync", False))
    elif optimizer.get("name") not in (None, "fused_adam", "adam", "adamw"):
        raise Unsupported(
            f"model.optim.name {optimizer['name']!r}: Adam is predicted; known are distributed_fused_adam, fused_adam, adam, adamw"
        )
    return {name: value for name, value in flags.items() if value is not False}


def nemo_tables(flags: Flags) -> dict[str, dict[str, object]]:
    """The tables of a recipe with these arguments."""
    names = {name: key for key, name in _RENAMED.items()}
    inverse = {name: key for key, name in _INVERSE.items()}
    model: dict[str, object] = {}
    optimizer: dict[str, object] = {"name": "distributed_fused_adam" if "use-distributed-optimizer" in flags else "fused_adam"}
    for name, value in flags.items():
        match name:
            case "bf16" | "fp16" | "use-distributed-optimizer" | "group-query-attention":
                continue
            case "overlap-grad-reduce" | "overlap-param-gather":
                optimizer["overlap_grad_sync" if name == "overlap-grad-reduce" else "overlap_param_sync"] = value
            case "swiglu":
                model["activation"] = "fast-swiglu"
            case "fp8-format":
                model |= {"fp8": True, "fp8_e4m3": value == "e4m3", "fp8_hybrid": value == "hybrid"}
            case _ if name in inverse:
                model[inverse[name]] = not value
            case _:
                model[names.get(name, name.replace("-", "_"))] = value
    if "use-distributed-optimizer" in flags and "overlap-grad-reduce" not in flags:
        optimizer["overlap_grad_sync"] = False
    precision = "bf16-mixed" if "bf16" in flags else "16-mixed" if "fp16" in flags else "32"
    return {"trainer": {"precision": precision}, "model": model, "model.optim": optimizer}
