"""transformers: images and text together."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.corpus.case import BATCH, SEQ, Case, hugging_face, images, text
from experiments.corpus.models.sizes import ENDS, IMAGE, TEXT, TRANSFORMER

__all__ = ["CASES"]

_CLIP_TENSOR = ("*.[qkv]_proj.weight=S(0)", "*.out_proj.weight=S(1)", "*.fc1.weight=S(0)", "*.fc2.weight=S(1)")


def _pairs(size: int = 32) -> dict[str, Tensor]:
    return text(labels=False) | {"pixel_values": images(size), "return_loss": True}  # type: ignore[return-value]


def _answers() -> dict[str, Tensor]:
    return text(labels=False) | {"pixel_values": images(32), "labels": torch.rand(BATCH, 5)}


_DUAL = {"text_config": {**TEXT, **ENDS}, "vision_config": IMAGE, "projection_dim": 16}

CASES: tuple[Case, ...] = (
    hugging_face("clip", "CLIPModel", _pairs, **_DUAL, tensor=_CLIP_TENSOR),
    hugging_face("siglip", "SiglipModel", _pairs, **_DUAL),
    hugging_face(
        "siglip2",
        "Siglip2Model",
        lambda: (
            text(labels=False)
            | {
                "pixel_values": torch.randn(BATCH, 16, 192),
                "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long),
                "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
                "return_loss": True,
            }
        ),
        text_config={**TEXT, **ENDS},
        vision_config={**IMAGE, "num_patches": 16},
        by_value=True,
    ),
    hugging_face("chinese_clip", "ChineseCLIPModel", _pairs, **_DUAL),
    hugging_face(
        "altclip",
        "AltCLIPModel",
        _pairs,
        text_config={**TEXT, "pad_token_id": 1, "project_dim": 16},
        vision_config=IMAGE,
        projection_dim=16,
    ),
    hugging_face(
        "clipseg",
        "CLIPSegForImageSegmentation",
        lambda: text(labels=False) | {"pixel_values": images(32), "labels": torch.rand(BATCH, 32, 32).round()},
        **_DUAL,
        extract_layers=[0, 1],
        reduce_dim=16,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    ),
    hugging_face(
        "groupvit",
        "GroupViTModel",
        _pairs,
        text_config={**TEXT, **ENDS},
        vision_config={**IMAGE, "depths": [1, 1, 0], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0]},
        projection_dim=16,
        projection_intermediate_dim=16,
    ),
    hugging_face(
        "blip",
        "BlipForConditionalGeneration",
        lambda: text() | {"pixel_values": images(32)},
        text_config={**TEXT, **ENDS, "encoder_hidden_size": 32, "projection_dim": 16},
        vision_config={**IMAGE, "projection_dim": 16},
        projection_dim=16,
        image_text_hidden_size=16,
    ),
    hugging_face("vilt", "ViltForQuestionAnswering", _answers, **TEXT, image_size=32, patch_size=8, num_labels=5),
    hugging_face(
        "visual_bert",
        "VisualBertForQuestionAnswering",
        lambda: text(labels=False) | {"visual_embeds": torch.randn(BATCH, 4, 24), "labels": torch.softmax(torch.randn(BATCH, 2), -1)},
        **TEXT,
        visual_embedding_dim=24,
    ),
    hugging_face(
        "layoutlmv3",
        "LayoutLMv3ForTokenClassification",
        lambda: _laid_out(),
        **{**TEXT, "max_position_embeddings": 128},
        input_size=32,
        patch_size=8,
        coordinate_size=6,
        shape_size=4,
        max_2d_position_embeddings=1024,
    ),
    hugging_face(
        "clap",
        "ClapModel",
        lambda: (
            text(labels=False)
            | {"input_features": torch.randn(BATCH, 1, 64, 64), "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool), "return_loss": True}
        ),
        text_config={**TEXT, "pad_token_id": 1},
        audio_config={
            "hidden_size": 64,
            "patch_embeds_hidden_size": 16,
            "depths": [1, 1, 1],
            "num_attention_heads": [2, 2, 2],
            "num_mel_bins": 16,
            "spec_size": 64,
            "window_size": 4,
            "enable_fusion": False,
            "num_hidden_layers": 3,
        },
        projection_dim=16,
    ),
    hugging_face(
        "llava",
        "LlavaForConditionalGeneration",
        lambda: _with_picture(),
        name="llava",
        text_config={"model_type": "llama", **TEXT, "num_key_value_heads": 2, **ENDS},
        vision_config={"model_type": "clip_vision_model", **IMAGE},
        image_token_index=4,
        image_token_id=4,
        vision_feature_layer=-1,
    ),
    hugging_face(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        lambda: _with_picture(types=True),
        name="paligemma",
        text_config={"model_type": "gemma", **TEXT, "num_key_value_heads": 1, "head_dim": 8, **ENDS},
        vision_config={"model_type": "siglip_vision_model", **IMAGE, "vision_use_head": False},
        image_token_index=4,
        image_token_id=4,
        projection_dim=32,
    ),
    hugging_face("git", "GitForCausalLM", lambda: text() | {"pixel_values": images(32)}, name="git", **TEXT, **ENDS, vision_config=IMAGE),
    hugging_face(
        "vision-text-dual-encoder",
        "VisionTextDualEncoderModel",
        _pairs,
        text_config={"model_type": "bert", **TEXT},
        vision_config={"model_type": "vit", **IMAGE},
        projection_dim=16,
    ),
    hugging_face(
        "flava",
        "FlavaModel",
        lambda: text(labels=False) | {"pixel_values": images(32)},
        name="flava",
        loss=lambda out: out.multimodal_embeddings.pow(2).mean(),
        text_config=TEXT,
        image_config=IMAGE,
        multimodal_config=TRANSFORMER,
    ),
)


def _laid_out() -> dict[str, Tensor]:
    left, top = torch.randint(0, 400, (2, BATCH, SEQ)).unbind()
    boxes = torch.stack([left, top, left + 100, top + 50], -1)
    return text(labels=False) | {"bbox": boxes, "pixel_values": images(32), "labels": torch.randint(0, 2, (BATCH, SEQ))}


def _with_picture(*, types: bool = False) -> dict[str, Tensor]:
    """16 places of the text are the picture's patches."""
    given = text(seq=32)
    tokens = given["input_ids"].clone()
    tokens[:, 1:17] = 4
    given |= {"input_ids": tokens, "labels": tokens.masked_fill(tokens == 4, -100), "pixel_values": images(32)}
    return given | ({"token_type_ids": (tokens != 4).long()} if types else {})
