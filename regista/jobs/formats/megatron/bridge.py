"""Megatron-Bridge's recipes: the nested tables of a ConfigContainer <-> Megatron-LM's arguments.

Most fields are arguments with other dashes (model.tensor_model_parallel_size); the others are named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.formats.values import Flags

__all__ = ["bridge_flags", "bridge_tables", "is_bridge"]

_READ = ("model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap")
"""Tables of which fields may change a step."""
_QUIET = (
    *("rng", "rerun_state_machine", "scheduler", "logger", "tokenizer", "checkpoint", "ft", "straggler", "nvrx_straggler", "profiling"),
    *("inprocess_restart", "tensor_inspect", "optimizer_config_override_provider", "dataset", "dist", "peft", "validation", "_target_"),
)
_RENAMED = {
    "num_moe_experts": "num-experts",
    "gated_linear_unit": "swiglu",
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "fp8_param": "fp8-param-gather",
    "fp4_param": "fp4-param-gather",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}
_INVERSE = {
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
}
_PRESETS: Mapping[str, Flags] = {
    "bf16_mixed": {"bf16": True},
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "delayed"},
    "bf16_with_fp8_current_scaling_mixed": {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
    "bf16_with_fp8_subchannel_scaling_mixed": {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "mxfp8"},
    "bf16_with_nvfp4_mixed": {"bf16": True, "fp4-format": "e2m1"},
}
"""mixed_precision as a name."""
_HOME = {
    **dict.fromkeys(("micro-batch-size", "global-batch-size"), "train"),
    **dict.fromkeys(("overlap-grad-reduce", "overlap-param-gather", "use-distributed-optimizer", "data-parallel-sharding-strategy"), "ddp"),
    **dict.fromkeys(("use-megatron-fsdp", "accumulate-allreduce-grads-in-fp32"), "ddp"),
    **dict.fromkeys(("use-precision-aware-optimizer", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"), "optimizer"),
    **dict.fromkeys(("bf16", "fp16", "fp8-format", "fp8-recipe", "fp8-param-gather", "fp4-format", "fp4-param-gather"), "mixed_precision"),
    **dict.fromkeys(
        ("tp-comm-overlap", "no-overlap-p2p-communication", "defer-embedding-wgrad-compute", "wgrad-deferral-limit"), "comm_overlap"
    ),
}
"""Table of an argument; of all others it is model."""


_DTYPES = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_WORDS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}


def _dtype(value: object) -> object:
    """A dtype as an argument says it; recipes that were written by a program have ``{_target_: torch.bfloat16}``."""
    word = value.get("_target_") if isinstance(value, dict) else value
    return _WORDS.get(str(word), word)


def is_bridge(data: Mapping[str, object]) -> bool:
    return bool(set(data) & {"model", "train", "ConfigContainer", "perf_matrix"}) or "_target_" in data


def bridge_flags(data: Mapping[str, object]) -> Flags:
    """The arguments of a recipe.

    Raises:
        Unsupported: a table of several recipes, or a table that recipes do not have.   InvalidFile: two fields that contradict each other.
    """
    if "perf_matrix" in data or "ConfigContainer" in data:
        raise Unsupported(
            "perf_matrix, ConfigContainer: this is a table of several recipes, of another version of Megatron-Bridge; "
            "give one recipe, with model:, train:, ddp: ... at its top"
        )
    if unknown := sorted(str(key) for key in data if key not in (*_READ, *_QUIET)):
        raise Unsupported(f"unknown tables {unknown}; a recipe of Megatron-Bridge has {', '.join((*_READ, *_QUIET[:-1]))}")
    flags: dict[str, object] = {}

    def put(name: str, value: object, where: str) -> None:
        if flags.get(name, value) != value:
            raise InvalidFile(f"{where} = {value}, and another table says {flags[name]} of the same; give one")
        flags[name] = value

    # The defaults of model's precision stand beside what mixed_precision says, which wins.
    mixed = isinstance(data.get("mixed_precision"), dict | str)
    for section in _READ:
        table = data.get(section) or {}
        if isinstance(table, str):
            if section != "mixed_precision" or table not in _PRESETS:
                raise Unsupported(f"{section}: {table!r} is unknown; mixed_precision may be {', '.join(_PRESETS)}")
            flags |= _PRESETS[table]
            continue
        if not isinstance(table, dict):
            raise InvalidFile(f"{section} is no table")
        for key, value in table.items():
            name = str(key)
            overruled = mixed and section == "model" and name.split("_")[0] in ("bf16", "fp16", "fp8", "fp4")
            value = _dtype(value) if name in _DTYPES else value
            if value is None or name == "_target_" or isinstance(value, dict) or overruled:
                continue
            if name in _INVERSE:
                put(_INVERSE[name], not value, f"{section}.{name}")
            elif name == "num_query_groups":
                if value != table.get("num_attention_heads"):
                    flags |= {"group-query-attention": True, "num-query-groups": value}
            elif name == "grad_reduce_in_fp32":
                # mixed_precision, which stands behind ddp, wins.
                flags |= {"accumulate-allreduce-grads-in-fp32": bool(value), "grad-reduce-in-bf16": not value}
            elif value is not False:
                put(_RENAMED.get(name, name.replace("_", "-")), value, f"{section}.{name}")
    for section, key, name in (("dataset", "sequence_length", "seq-length"), ("dist", "use_megatron_fsdp", "use-megatron-fsdp")):
        table = data.get(section)
        if isinstance(table, dict) and table.get(key):
            put(name, table[key], f"{section}.{key}")
    if isinstance(peft := data.get("peft"), dict | str) and peft:
        raise Unsupported("peft: adapters alone are trained, of which no recipe says how many; write the job as Regista's TOML")
    return {name: value for name, value in flags.items() if value is not False}


def bridge_tables(flags: Flags) -> dict[str, dict[str, object]]:
    """The tables of a recipe with these arguments."""
    tables: dict[str, dict[str, object]] = {}
    names = {name: key for key, name in _RENAMED.items()}
    inverse = {name: key for key, name in _INVERSE.items()}
    for name, value in flags.items():
        if name == "group-query-attention":
            continue
        if name == "position-embedding-type" or name not in _HOME:
            table, key = "model", names.get(name, name.replace("-", "_"))
        else:
            table, key = _HOME[name], names.get(name, name.replace("-", "_"))
        if name in inverse:
            key, value = inverse[name], not value
        if name in ("grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32"):
            table, key, value = "ddp", "grad_reduce_in_fp32", name.startswith("accumulate")
        tables.setdefault(table, {})[key] = value
    return tables
