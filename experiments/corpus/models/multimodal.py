"""transformers: language models that are shown a picture, whose places in the text are checked by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from experiments.corpus.case import BATCH, VOCAB, Case, hugging_face
from experiments.corpus.models.sizes import ENDS, IMAGE, TEXT

__all__ = ["CASES"]

_PLACE = 4
"""The token of a place for a piece of the picture."""
_WRITTEN = 12


def _shown(places: int, **others: Callable[[], Tensor]) -> Callable[[], Mapping[str, Tensor]]:
    """A picture of 32 x 32, and a text that begins with ``places`` of it.   others: inputs beside, or instead."""

    def batch() -> Mapping[str, Tensor]:
        ids = torch.randint(_PLACE + 1, VOCAB, (BATCH, places + _WRITTEN))
        ids[:, 1 : 1 + places] = _PLACE
        given = {
            "input_ids": ids,
            "labels": ids.clone(),
            "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.randn(BATCH, 3, 32, 32),
        }
        return given | {name: make() for name, make in others.items()}

    return batch


_GROUPED = {**TEXT, "num_key_value_heads": 2, **ENDS}
_SIGLIP = {"model_type": "siglip_vision_model", **IMAGE, "vision_use_head": False}
_TOKENS = {"image_token_index": _PLACE, "image_token_id": _PLACE}

CASES: tuple[Case, ...] = (
    hugging_face(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        _shown(4, token_type_ids=lambda: torch.cat([torch.zeros(1), torch.ones(4), torch.zeros(11)]).long().repeat(BATCH, 1)),
        name="gemma3",
        text_config={"model_type": "gemma3_text", **_GROUPED, "head_dim": 8},
        vision_config=_SIGLIP,
        mm_tokens_per_image=4,
        **_TOKENS,
    ),
    hugging_face(
        "internvl",
        "InternVLForConditionalGeneration",
        _shown(4),
        name="internvl",
        text_config={"model_type": "qwen2", **_GROUPED},
        vision_config={"model_type": "internvl_vision", **IMAGE, "image_size": [32, 32], "patch_size": [8, 8]},
        downsample_ratio=0.5,
        image_token_id=_PLACE,
    ),
    hugging_face(
        "vipllava",
        "VipLlavaForConditionalGeneration",
        _shown(16),
        name="vipllava",
        text_config={"model_type": "llama", **_GROUPED},
        vision_config={"model_type": "clip_vision_model", **IMAGE},
        vision_feature_layers=[-1, -2],
        **_TOKENS,
    ),
    hugging_face(
        "aya_vision",
        "AyaVisionForConditionalGeneration",
        _shown(4),
        name="aya_vision",
        text_config={"model_type": "cohere2", **_GROUPED},
        vision_config=_SIGLIP,
        downsample_factor=2,
        adapter_layer_norm_eps=1e-6,
        vision_feature_layer=-1,
        **_TOKENS,
    ),
    hugging_face(
        "cohere2_vision",
        "Cohere2VisionForConditionalGeneration",
        _shown(4),
        name="cohere2_vision",
        text_config={"model_type": "cohere2", **_GROUPED},
        vision_config=_SIGLIP,
        downsample_factor=2,
        alignment_intermediate_size=64,
        image_token_id=_PLACE,
    ),
    hugging_face(
        "mllama",
        "MllamaForConditionalGeneration",
        _shown(
            1,
            pixel_values=lambda: torch.randn(BATCH, 1, 1, 3, 32, 32),
            aspect_ratio_ids=lambda: torch.ones(BATCH, 1, dtype=torch.long),
            aspect_ratio_mask=lambda: torch.ones(BATCH, 1, 1, dtype=torch.long),
            cross_attention_mask=lambda: torch.ones(BATCH, 1 + _WRITTEN, 1, 1, dtype=torch.long),
        ),
        name="mllama",
        text_config={"model_type": "mllama_text_model", **_GROUPED, "cross_attention_layers": [1]},
        vision_config={
            "model_type": "mllama_vision_model",
            **IMAGE,
            "num_global_layers": 1,
            "attention_heads": 4,
            "max_num_tiles": 1,
            "vision_output_dim": 64,
            "intermediate_layers_indices": [0],
            "supported_aspect_ratios": [[1, 1]],
        },
        image_token_index=_PLACE,
    ),
    hugging_face(
        "blip-2",
        "Blip2ForConditionalGeneration",
        _shown(4),
        name="blip-2",
        text_config={"model_type": "opt", **TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, **ENDS},
        vision_config=IMAGE,
        qformer_config={**TEXT, "encoder_hidden_size": 32},
        num_query_tokens=4,
        **_TOKENS,
    ),
    hugging_face(
        "idefics3",
        "Idefics3ForConditionalGeneration",
        _shown(4, pixel_values=lambda: torch.randn(BATCH, 1, 3, 32, 32)),
        name="idefics3",
        by_value=True,  # pixel_values[real_images_inds]: pictures without any value are left out
        text_config={"model_type": "llama", **_GROUPED},
        vision_config={"model_type": "idefics3_vision", **IMAGE},
        scale_factor=2,
        image_token_id=_PLACE,
    ),
)
