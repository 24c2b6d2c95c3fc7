"""transformers: encoders with decoders, of text and of time series."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.corpus.case import BATCH, SEQ, VOCAB, Case, classes, hugging_face, ids, text
from experiments.corpus.models.sizes import ENCODER_DECODER

__all__ = ["CASES"]

_T5 = {"num_layers": 2, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": VOCAB, "decoder_start_token_id": 0}
_BART = {
    **ENCODER_DECODER, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
_T5_TENSOR = ("*.[qkv].weight=S(0)", "*.o.weight=S(1)", "*.wi.weight=S(0)", "*.wo.weight=S(1)")


def _translated(model_type: str, *, name: str = "", tensor: tuple[str, ...] = (), by_value: bool = False, **sizes: object) -> Case:
    return hugging_face(model_type, "Seq2SeqLM", text, name=name, tensor=tensor, by_value=by_value, **sizes)


def _ended() -> dict[str, Tensor]:
    """Texts that end, with a class each: the state of their last token is the text's."""
    return {"input_ids": torch.cat([ids(BATCH, SEQ - 1), torch.full((BATCH, 1), 2)], 1), "labels": classes(3)}


def _series() -> dict[str, Tensor]:
    past, future = 16 + 7, 8
    return {
        "past_values": torch.randn(BATCH, past),
        "past_time_features": torch.randn(BATCH, past, 2),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.randn(BATCH, future),
        "future_time_features": torch.randn(BATCH, future, 2),
    }


_TIME = {
    "prediction_length": 8,
    "context_length": 16,
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


_PATCHED = {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 8}


def _patches() -> dict[str, Tensor]:
    return {"past_values": torch.randn(BATCH, 32, 2), "future_values": torch.randn(BATCH, 8, 2)}


def _decisions() -> dict[str, Tensor]:
    return {
        "states": torch.randn(BATCH, 8, 5),
        "actions": torch.randn(BATCH, 8, 3),
        "rewards": torch.randn(BATCH, 8, 1),
        "returns_to_go": torch.randn(BATCH, 8, 1),
        "timesteps": torch.arange(8).repeat(BATCH, 1),
        "attention_mask": torch.ones(BATCH, 8),
        "target": torch.randn(BATCH, 8, 3),
    }


def _action_loss(output: object, target: Tensor) -> Tensor:
    return torch.nn.functional.mse_loss(output.action_preds, target)  # type: ignore[attr-defined]


CASES: tuple[Case, ...] = (
    _translated("t5", **_T5, tensor=_T5_TENSOR),
    _translated("mt5", **_T5),
    _translated("umt5", **_T5),
    _translated("longt5", **_T5, local_radius=4),
    _translated(
        "switch_transformers", **_T5, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_decoder_layers=2
    ),
    _translated("bart", **_BART),
    hugging_face("bart", "SequenceClassification", _ended, name="bart classifier", **_BART, by_value=True),
    _translated("mbart", **_BART),
    _translated("plbart", **_BART),
    _translated("mvp", **_BART),
    _translated("pegasus", **_BART),
    _translated("pegasus_x", **_BART, block_size=8, num_global_tokens=4),
    _translated("bigbird_pegasus", **_BART, attention_type="block_sparse", block_size=4, num_random_blocks=1),
    _translated("blenderbot", **_BART),
    _translated("blenderbot-small", **_BART),
    _translated("marian", **_BART),
    _translated("m2m_100", **_BART),
    _translated("nllb-moe", **_BART, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2, expert_capacity=16),
    _translated(
        "led",
        **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
        attention_window=[8, 8],
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    _translated(
        "prophetnet",
        hidden_size=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=VOCAB,
        max_position_embeddings=64,
    ),
    _translated(
        "fsmt", **{k: v for k, v in _BART.items() if k != "vocab_size"}, langs=["en", "de"], src_vocab_size=VOCAB, tgt_vocab_size=VOCAB
    ),
    hugging_face("time_series_transformer", "TimeSeriesTransformerForPrediction", _series, **_TIME),
    hugging_face("informer", "InformerForPrediction", _series, **_TIME),
    hugging_face("autoformer", "AutoformerForPrediction", _series, **_TIME),
    hugging_face(
        "patchtst",
        "PatchTSTForPrediction",
        _patches,
        **_PATCHED,
        d_model=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
    ),
    hugging_face(
        "patchtsmixer",
        "PatchTSMixerForPrediction",
        _patches,
        **_PATCHED,
        d_model=8,
        num_layers=2,
    ),
    hugging_face(
        "decision_transformer",
        "DecisionTransformerModel",
        _decisions,
        loss=_action_loss,
        state_dim=5,
        act_dim=3,
        hidden_size=32,
        n_layer=2,
        n_head=2,
        max_ep_len=64,
    ),
)
assert SEQ == 16
