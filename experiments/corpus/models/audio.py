"""transformers: speech and sound."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.corpus.case import BATCH, VOCAB, Case, classes, hugging_face, ids
from experiments.corpus.models.sizes import ENCODER_DECODER, ENDS, TRANSFORMER

__all__ = ["CASES"]

_WAVE = {
    **TRANSFORMER, "vocab_size": VOCAB,
    "conv_dim": [16, 16, 16], "conv_stride": [5, 4, 2], "conv_kernel": [10, 8, 4], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_length": 2, "mask_time_prob": 0.05,
}  # fmt: skip


def _wave() -> dict[str, Tensor]:
    return {"input_values": torch.randn(BATCH, 1600), "labels": classes(2)}


def _spoken() -> dict[str, Tensor]:
    return {"input_values": torch.randn(BATCH, 1600), "labels": ids(BATCH, 6)}


def _whisper() -> dict[str, Tensor]:
    return {"input_features": torch.randn(BATCH, 16, 64), "labels": ids(BATCH, 12)}


def _classified(model_type: str, **sizes: object) -> Case:
    return hugging_face(
        model_type, "AudioClassification", _wave, name=f"{model_type} classifier", **{**_WAVE, "classifier_proj_size": 16}, **sizes
    )


def _recognised(model_type: str, **sizes: object) -> Case:
    return hugging_face(model_type, "CTC", _spoken, **_WAVE, **sizes)


_WHISPER = {
    **ENCODER_DECODER, **ENDS, "decoder_start_token_id": 1, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32,
}  # fmt: skip
_WHISPER_TENSOR = ("*.[qkv]_proj.weight=S(0)", "*.out_proj.weight=S(1)", "*.fc1.weight=S(0)", "*.fc2.weight=S(1)")

CASES: tuple[Case, ...] = (
    hugging_face("whisper", "WhisperForConditionalGeneration", _whisper, **_WHISPER, tensor=_WHISPER_TENSOR),
    hugging_face(
        "whisper",
        "AudioClassification",
        lambda: {"input_features": torch.randn(BATCH, 16, 64), "labels": classes(2)},
        name="whisper classifier",
        **_WHISPER,
        classifier_proj_size=16,
    ),
    _recognised("wav2vec2"),
    _classified("wav2vec2"),
    _classified("hubert"),
    _classified("wavlm"),
    _classified("unispeech"),
    _classified("unispeech-sat"),
    _classified("sew", squeeze_factor=2),
    _classified("data2vec-audio", conv_pos_kernel_size=5),
    _classified("wav2vec2-conformer", conv_depthwise_kernel_size=5),
    hugging_face(
        "wav2vec2-bert",
        "AudioClassification",
        lambda: {"input_features": torch.randn(BATCH, 24, 20), "labels": classes(2)},
        **TRANSFORMER,
        feature_projection_input_dim=20,
        conv_depthwise_kernel_size=5,
        classifier_proj_size=16,
        vocab_size=VOCAB,
        mask_time_length=2,
    ),
    hugging_face(
        "audio-spectrogram-transformer",
        "AudioClassification",
        lambda: {"input_values": torch.randn(BATCH, 64, 32), "labels": classes(2)},
        **TRANSFORMER,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=64,
        num_mel_bins=32,
    ),
    hugging_face(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        lambda: {"input_features": torch.randn(BATCH, 32, 16), "labels": ids(BATCH, 12)},
        **ENCODER_DECODER,
        conv_channels=32,
        input_feat_per_channel=16,
        max_source_positions=64,
        max_target_positions=64,
    ),
    hugging_face(
        "moonshine",
        "MoonshineForConditionalGeneration",
        lambda: {"input_values": torch.randn(BATCH, 6400), "labels": ids(BATCH, 12)},
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        vocab_size=VOCAB,
        **ENDS,
        decoder_start_token_id=1,
    ),
)
