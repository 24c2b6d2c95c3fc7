"""The model's numbers among Megatron's arguments."""

from __future__ import annotations

import re
from dataclasses import replace

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.formats.settings import Settings
from regista.jobs.formats.values import Asked
from regista.jobs.job import Model

__all__ = ["DENSE_FIRST", "VOCAB", "Script", "read_model"]

VOCAB = {"bert": 30_524, "t5": 29_056}
"""Of the vocabularies that Megatron's tests of these scripts use, before padding."""
_GPT2_VOCAB = 50_257
DENSE_FIRST = re.compile(r"\(?\[0\]\*(\d{1,4})\+\[1\]\*(\d{1,4})\)?")
"""``--moe-layer-freq`` of a model whose first layers have no experts."""
_POSITIONS = {"learned_absolute": True, "rope": False, "none": False, "yarn": False, "relative": False, "mrope": False}

Script = str
"""gpt, bert, t5, mamba: what Megatron's training script trains, which no argument says."""


def read_model(settings: Settings, script: Script, asked: Asked, assumed: list[str]) -> Model:
    """The model; what is assumed is added to ``assumed``.

    Raises:
        RegistaError: numbers that are missing, impossible or contradict each other.
    """
    if asked.family is not None and not settings.given("num-layers"):
        assumed.append(f"the model's numbers are those of {asked.family.name}")
        return replace(asked.family, seq=settings.count("seq-length", asked.seq or asked.family.seq, least=1))
    settings.need(
        "hidden-size", "num-attention-heads", *(() if script == "t5" or settings.given("hybrid-override-pattern") else ("num-layers",))
    )
    hidden, heads = settings.count("hidden-size", least=1), settings.count("num-attention-heads", least=1)
    pattern = settings.text("hybrid-override-pattern").replace("|", "").split("/")[0]
    gated = settings.truth("swiglu")
    if gated and settings.given("squared-relu") and settings.truth("squared-relu"):
        raise Unsupported(f"{settings.name('swiglu')} and {settings.name('squared-relu')} contradict each other; give one")
    latent = settings.truth("multi-latent-attention")
    if script == "t5":
        layers = settings.count("decoder-num-layers", settings.count("num-layers", 0) or None, least=1)
        encoder = settings.count("encoder-num-layers", settings.count("num-layers", 0) or None, least=1)
        seq, encoder_seq = settings.count("decoder-seq-length", 128, least=1), settings.count("encoder-seq-length", 512, least=1)
    else:
        layers, encoder, encoder_seq = settings.count("num-layers", len(pattern) or None, least=1), 0, 0
        seq = settings.count("seq-length", asked.seq, least=1)
    experts = settings.count("num-experts", 0)
    ffn = settings.count("ffn-hidden-size", int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden)
    model = Model(
        name=script,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=_kv_heads(settings, heads, latent),
        head_dim=settings.count("kv-channels", hidden // heads, least=1),
        vocab=_vocab(settings, script, asked, assumed),
        seq=seq,
        gated=gated,
        tied=not settings.truth("untie-embeddings-and-output-weights"),
        experts=experts,
        top_k=settings.count("moe-router-topk", 2) if experts else 0,
        expert_ffn=settings.count("moe-ffn-hidden-size", ffn) if experts else 0,
        shared_ffn=settings.count("moe-shared-expert-intermediate-size", 0) if experts else 0,
        dense_layers=_dense_layers(settings, layers) if experts else 0,
        causal=script != "bert",
        learned_positions=_learned(settings),
        encoder=encoder,
        encoder_seq=encoder_seq,
    )
    if latent:
        rope = settings.count("qk-pos-emb-head-dim", 64)
        model = replace(
            model,
            kv_latent=settings.count("kv-lora-rank", 32, least=1),
            q_latent=settings.count("q-lora-rank", 0),
            rope_dim=rope,
            head_dim=settings.count("qk-head-dim", 128, least=1) + rope,
            value_dim=settings.count("v-head-dim", 128, least=1),
        )
    if not pattern:
        return model
    return replace(
        model,
        pattern=pattern,
        state_dim=settings.count("mamba-state-dim", 128),
        mamba_heads=settings.count("mamba-num-heads", 2 * hidden // settings.count("mamba-head-dim", 64, least=1)),
        mamba_head_dim=settings.count("mamba-head-dim", 64, least=1),
        mamba_groups=settings.count("mamba-num-groups", 8),
        ffn=ffn if "-" in pattern else 0,
    )


def _kv_heads(settings: Settings, heads: int, latent: bool) -> int:
    grouped = settings.truth("group-query-attention")
    if not grouped and settings.count("num-query-groups", heads, least=1) not in (1, heads):
        raise Unsupported(
            f"{settings.name('num-query-groups')} without {settings.name('group-query-attention')} is ignored by Megatron: "
            f"give both, or neither"
        )
    return settings.count("num-query-groups", 1, least=1) if grouped and not latent else heads


def _vocab(settings: Settings, script: Script, asked: Asked, assumed: list[str]) -> int:
    if asked.vocab is not None:
        settings.given("vocab-size")
        return asked.vocab
    if settings.given("vocab-size"):
        return settings.count("vocab-size", least=1)
    if script in VOCAB:
        return VOCAB[script]
    tokenizer = settings.text("tokenizer-type", "GPT2BPETokenizer")
    if tokenizer != "GPT2BPETokenizer" or settings.given("tokenizer-model"):
        raise InvalidFile(
            f"{settings.name('vocab-size')} is missing, and a tokenizer of type {tokenizer} does not tell it; give --vocab N to regista advise"
        )
    assumed.append(f"{_GPT2_VOCAB:,} words: GPT-2's, Megatron's default")
    return _GPT2_VOCAB


def _learned(settings: Settings) -> bool:
    rotary = settings.truth("use-rotary-position-embeddings")
    return settings.choice("position-embedding-type", _POSITIONS, True) and not rotary


def _dense_layers(settings: Settings, layers: int) -> int:
    """How many layers at the beginning have no experts."""
    text = settings.text("moe-layer-freq", "1").replace(" ", "")
    if found := DENSE_FIRST.fullmatch(text):
        dense, mixed = int(found[1]), int(found[2])
    else:
        marks = [mark for mark in re.split(r"[\[\],]+", text) if mark]
        if marks == ["1"]:
            return 0
        dense = next((i for i, mark in enumerate(marks) if mark != "0"), len(marks))
        mixed = len(marks) - dense
        if set(marks[dense:]) - {"1"}:
            raise Unsupported(f"{settings.name('moe-layer-freq')} {text}: layers with experts after those without are predicted, no others")
    if dense + mixed != layers:
        raise InvalidFile(
            f"{settings.name('moe-layer-freq')} {text} is of {dense + mixed} layers, {settings.name('num-layers')} says {layers}"
        )
    return dense
