"""Sizes that many configs have under the same names: models small enough to be planned, run and compared in seconds."""

from __future__ import annotations

from experiments.corpus.case import VOCAB

__all__ = ["ENCODER_DECODER", "ENDS", "IMAGE", "PYRAMID", "TEXT", "TRANSFORMER"]

TRANSFORMER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**TRANSFORMER, "vocab_size": VOCAB, "max_position_embeddings": 64}
IMAGE = {**TRANSFORMER, "image_size": 32, "patch_size": 8}
"""A vision transformer of 16 patches."""

ENCODER_DECODER = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": VOCAB,
}  # fmt: skip

PYRAMID = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
"""Four levels, each half as wide and high as the one before."""

ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
