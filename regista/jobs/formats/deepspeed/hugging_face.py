"""A model's numbers from the config.json of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.reading import read_json
from regista.jobs.formats.settings import Settings
from regista.jobs.job import Model

__all__ = ["hugging_face_model", "model_of_config"]

_GATED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "olmo2",
    "phi3",
    "smollm3",
)
_PLAIN = ("gpt2", "gpt_neox", "opt", "bert", "gpt_neo")
_LEARNED = ("gpt2", "opt", "bert", "gpt_neo")


def hugging_face_model(path: Path) -> Model:
    """The model of a config.json.

    Raises:
        InvalidFile: no such file, or numbers that are missing or impossible.   Unsupported: a model_type that is not known.
    """
    data = read_json(path, "put the model's config.json beside DeepSpeed's JSON, or give --family NAME")
    if not isinstance(data, dict):
        raise InvalidFile(f"{path}: no table at its top; a config.json of transformers is needed")
    try:
        return model_of_config(data)
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}") from None


def model_of_config(data: Mapping[str, object]) -> Model:
    """Raises as hugging_face_model."""
    settings = Settings(data)
    kind = settings.text("model_type")
    if kind not in (*_GATED, *_PLAIN):
        raise Unsupported(
            f"model_type {kind!r} is not predicted; known are {', '.join((*_GATED, *_PLAIN))}; give --family NAME in its place"
        )

    def number(*names: str, default: int | None = None) -> int:
        """By the first of its names that there is."""
        given = next((name for name in names if settings.given(name)), names[0])
        return settings.count(given, default)

    hidden, heads = number("hidden_size", "n_embd"), number("num_attention_heads", "n_head")
    if heads < 1:
        raise Unsupported(f"num_attention_heads {heads}; at least 1 is needed")
    latent = number("kv_lora_rank", default=0)
    rope = number("qk_rope_head_dim", default=0) if latent else 0
    experts = number("num_local_experts", "num_experts", "n_routed_experts", default=0)
    ffn = number("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    own = number("moe_intermediate_size", default=ffn) if experts else 0
    shared = number("n_shared_experts", default=0) * own or number("shared_expert_intermediate_size", default=0)
    return Model(
        name=kind,
        layers=number("num_hidden_layers", "n_layer", "num_layers"),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=heads if latent else number("num_key_value_heads", default=heads),
        head_dim=number("qk_nope_head_dim") + rope if latent else number("head_dim", default=hidden // heads),
        vocab=number("vocab_size"),
        seq=number("max_position_embeddings", "n_positions"),
        gated=kind in _GATED,
        tied=settings.truth("tie_word_embeddings", kind in _PLAIN),
        experts=experts,
        top_k=number("num_experts_per_tok", default=2) if experts else 0,
        expert_ffn=own,
        shared_ffn=shared if experts else 0,
        dense_layers=number("first_k_dense_replace", default=0) if experts else 0,
        causal=kind != "bert",
        learned_positions=kind in _LEARNED,
        kv_latent=latent,
        q_latent=number("q_lora_rank", default=0) if latent else 0,
        rope_dim=rope,
        value_dim=number("v_head_dim", default=0) if latent else 0,
    )
