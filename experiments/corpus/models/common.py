"""transformers: text models that are shrunk by the sizes that most configs share, each taking those that its config has."""

from __future__ import annotations

import importlib

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
_MASKED = ("esmc", "gte", "jina_embeddings_v3", "mra", "nomic_bert", "ultrabert")


def _text(model_type: str, task: str, sizes: dict[str, int]) -> Case:
    def make() -> Trained:
        library = importlib.import_module("transformers")
        config = library.AutoConfig.for_model(model_type)
        config = library.AutoConfig.for_model(model_type, **{name: size for name, size in sizes.items() if hasattr(config, name)})
        return Trained(getattr(library, task).from_config(config).train(), text())

    return Case(library="transformers", name=model_type, make=make)


CASES: tuple[Case, ...] = (
    *(_text(model_type, "AutoModelForCausalLM", _CAUSAL_SIZES) for model_type in _CAUSAL),
    *(_text(model_type, "AutoModelForMaskedLM", {**TEXT, **ENDS}) for model_type in _MASKED),
)
