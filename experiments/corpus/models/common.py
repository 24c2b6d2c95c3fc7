"""transformers: text models that are shrunk by the sizes that most configs share, each taking those that its config has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from experiments.corpus.case import VOCAB, Case, Trained, text
from experiments.corpus.models.sizes import ENDS, TEXT, TRANSFORMER

__all__ = ["CASES"]

_CAUSAL_SIZES = {
    **TRANSFORMER, **ENDS, "vocab_size": VOCAB, "max_position_embeddings": 64, "num_key_value_heads": 2, "head_dim": 8,
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
}  # fmt: skip
_CAUSAL = (
    "afmoe", "aria_text", "cohere2_moe", "cwm", "ernie4_5_moe", "exaone_moe", "flint", "gpt-sw3", "granite_swa", "granitemoe_swa", "hunyuan_v1_moe",
    "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "jais2", "laguna", "llama4_text", "mellum", "mimo_v2_flash", "minimax_m2", "ministral3",
    "modernbert-decoder", "moshi", "nanochat", "nemotron_h", "olmo_hybrid", "solar_open", "vaultgemma", "hrm_text", "kolibri1", "beam",
)  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "qk_head_dim": 16, "v_head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16,
}  # fmt: skip
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
_CAUSAL_OF_THEIR_OWN: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(("deepseek_v32", "glm4_moe_lite", "minicpm3"), _LATENT),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), _DELTA),
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
}
"""Models whose configs have sizes that others do not."""
_MASKED = ("esmc", "gte", "jina_embeddings_v3", "mra", "nomic_bert", "ultrabert")


def _text(model_type: str, task: str, sizes: Mapping[str, object]) -> Case:
    def make() -> Trained:
        library = importlib.import_module("transformers")
        config = library.AutoConfig.for_model(model_type)
        config = library.AutoConfig.for_model(model_type, **{name: size for name, size in sizes.items() if hasattr(config, name)})
        return Trained(getattr(library, task).from_config(config).train(), text())

    return Case(library="transformers", name=model_type, make=make)


CASES: tuple[Case, ...] = (
    *(_text(model_type, "AutoModelForCausalLM", _CAUSAL_SIZES) for model_type in _CAUSAL),
    *(_text(name, "AutoModelForCausalLM", {**_CAUSAL_SIZES, **sizes}) for name, sizes in _CAUSAL_OF_THEIR_OWN.items()),
    *(_text(model_type, "AutoModelForMaskedLM", {**TEXT, **ENDS}) for model_type in _MASKED),
)
