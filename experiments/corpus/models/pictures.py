"""transformers: images."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from experiments.corpus.case import BATCH, Case, classes, hugging_face, images
from experiments.corpus.models.sizes import IMAGE, PYRAMID

__all__ = ["CASES"]

_VIT_TENSOR = ("*.[qkv]_proj.weight=S(0)", "*.o_proj.weight=S(1)", "*.fc1.weight=S(0)", "*.fc2.weight=S(1)")
_STAGED = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "image_size": 32, "patch_size": 2, "window_size": 4}
_CONV = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]}
_WITHOUT_INTERMEDIATE = {k: v for k, v in IMAGE.items() if k != "intermediate_size"}
_ATTENTIVE_PYRAMID = {**PYRAMID, "num_attention_heads": [1, 2, 4, 4]}
_MOBILE_VIT = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [16, 16, 24, 32, 48, 64, 64], "image_size": 64}


def _classified(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": images(size), "labels": classes(2)}


def _segmented(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": images(size), "labels": torch.randint(0, 2, (BATCH, size, size))}


def _masked(patches: int, size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": images(size), "bool_masked_pos": torch.rand(BATCH, patches) < 0.4}


def _video() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": classes(2)}


def _image(model_type: str, *, name: str = "", size: int = 32, tensor: tuple[str, ...] = (), **sizes: object) -> Case:
    return hugging_face(model_type, "ImageClassification", partial(_classified, size), name=name, tensor=tensor, **sizes)


CASES: tuple[Case, ...] = (
    _image("vit", **IMAGE, tensor=_VIT_TENSOR),
    hugging_face("vit", "MaskedImageModeling", partial(_masked, 16), name="vit masked", **IMAGE, encoder_stride=8),
    hugging_face(
        "vit_mae",
        "PreTraining",
        lambda: {"pixel_values": images(32)},
        name="vit_mae",
        **IMAGE,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    ),
    _image("vit_msn", **IMAGE),
    _image("beit", **IMAGE, use_relative_position_bias=True, use_mask_token=True),
    _image("data2vec-vision", **IMAGE, use_relative_position_bias=True),
    hugging_face("deit", "DeiTForImageClassification", _classified, **IMAGE),
    _image("dinov2", **_WITHOUT_INTERMEDIATE),
    _image("dinov2_with_registers", **_WITHOUT_INTERMEDIATE),
    _image("dinov3_vit", **IMAGE),
    _image("ijepa", **IMAGE),
    _image("swin", **_STAGED, tensor=_VIT_TENSOR),
    _image("swinv2", **_STAGED),
    hugging_face("swin", "MaskedImageModeling", partial(_masked, 256), name="swin masked", **_STAGED, encoder_stride=4),
    _image("focalnet", embed_dim=16, depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 64, 128], image_size=32, patch_size=2),
    _image(
        "hiera",
        embed_dim=16,
        image_size=[32, 32],
        patch_size=[3, 3],
        patch_stride=[2, 2],
        patch_padding=[1, 1],
        depths=[1, 1],
        num_heads=[1, 2],
        masked_unit_size=[4, 4],
        query_stride=[2, 2],
        num_query_pool=1,
    ),
    _image("convnext", **_CONV, tensor=("*.pwconv1.weight=S(0)", "*.pwconv2.weight=S(1)")),
    _image("convnextv2", **_CONV),
    _image("resnet", embedding_size=16, **PYRAMID, layer_type="bottleneck"),
    _image("regnet", embedding_size=16, **PYRAMID, groups_width=8),
    _image("bit", embedding_size=32, hidden_sizes=[32, 64, 64, 96], depths=[1, 1, 1, 1]),
    _image("mobilenet_v1", size=64, depth_multiplier=0.25, image_size=64),
    _image(
        "mobilenet_v2",
        size=64,
        depth_multiplier=0.35,
        image_size=64,
        tensor=("*.expand_1x1.convolution.weight=S(0)", "*.reduce_1x1.convolution.weight=S(1)"),
    ),
    _image("mobilevit", size=64, **_MOBILE_VIT, last_hidden_dim=32),
    _image("mobilevitv2", size=64, width_multiplier=0.25, image_size=64),
    _image(
        "efficientnet",
        size=64,
        width_coefficient=0.25,
        depth_coefficient=0.3,
        image_size=64,
        hidden_dim=320,
        tensor=("*.expand_conv.weight=S(0)", "*.project_conv.weight=S(1)"),
    ),
    _image("poolformer", size=64, **PYRAMID),
    _image("levit", size=64, image_size=64, hidden_sizes=[16, 32, 48], num_attention_heads=[2, 4, 4], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    _image("cvt", size=64, embed_dim=[16, 24, 32], num_heads=[1, 2, 4], depth=[1, 1, 2]),
    _image("pvt", size=64, image_size=64, **_ATTENTIVE_PYRAMID),
    _image("pvt_v2", size=64, image_size=64, **_ATTENTIVE_PYRAMID),
    _image("segformer", size=64, **_ATTENTIVE_PYRAMID, decoder_hidden_size=16),
    hugging_face(
        "segformer",
        "SemanticSegmentation",
        partial(_segmented, 64),
        name="segformer segmentation",
        **_ATTENTIVE_PYRAMID,
        decoder_hidden_size=16,
    ),
    hugging_face(
        "mobilevit",
        "SemanticSegmentation",
        partial(_segmented, 64),
        name="mobilevit segmentation",
        **_MOBILE_VIT,
        aspp_out_channels=16,
    ),
    hugging_face(
        "dpt",
        "SemanticSegmentation",
        partial(_segmented, 32),
        name="dpt segmentation",
        **{**IMAGE, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 16, 16],
        fusion_hidden_size=16,
        reassemble_factors=[4, 2, 1, 0.5],
        auxiliary_loss_weight=0.4,
    ),
    _image("swiftformer", size=64, image_size=64, depths=[1, 1, 1, 1], embed_dims=[16, 24, 32, 48]),
    hugging_face(
        "yolos",
        "YolosModel",
        lambda: {"pixel_values": images(32)},
        name="yolos backbone",
        **{**IMAGE, "image_size": [32, 32]},
        num_detection_tokens=4,
        loss=lambda out: out.last_hidden_state.pow(2).mean(),
    ),
    hugging_face(
        "glpn",
        "GLPNForDepthEstimation",
        lambda: {"pixel_values": images(64), "labels": torch.rand(BATCH, 64, 64) + 0.1},
        name="glpn",
        **_ATTENTIVE_PYRAMID,
        decoder_hidden_size=16,
    ),
    hugging_face(
        "imagegpt",
        "ImageGPTForCausalImageModeling",
        lambda: _pixels(),
        name="imagegpt",
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=65,
        n_positions=64,
    ),
    hugging_face(
        "videomae",
        "VideoClassification",
        _video,
        name="videomae",
        **IMAGE,
        num_frames=4,
        tubelet_size=2,
    ),
    hugging_face(
        "vivit",
        "VideoClassification",
        _video,
        name="vivit",
        **{k: v for k, v in IMAGE.items() if k != "patch_size"},
        num_frames=4,
        tubelet_size=[2, 8, 8],
    ),
    hugging_face(
        "timesformer",
        "VideoClassification",
        _video,
        name="timesformer",
        **IMAGE,
        num_frames=4,
    ),
    hugging_face(
        "swin2sr",
        "Swin2SRForImageSuperResolution",
        lambda: {"pixel_values": images(16), "target": torch.randn(BATCH, 3, 32, 32)},
        name="swin2sr",
        loss=lambda out, target: (out.reconstruction - target).abs().mean(),
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
        image_size=16,
        upscale=2,
    ),
)


def _pixels() -> dict[str, Tensor]:
    tokens = torch.randint(0, 64, (BATCH, 16))
    return {"input_ids": tokens, "labels": tokens.clone()}
