"""timm: models by name, with fewer and narrower layers where they take it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from experiments.corpus.case import CLASSES, Case, Trained, classes, images

__all__ = ["CASES"]


def _timm(name: str, size: int = 64, *, called: str = "", **sizes: object) -> Case:
    def make() -> Trained:
        module = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=CLASSES, **sizes)
        return Trained(module.train(), (images(size), classes()), nn.functional.cross_entropy)

    return Case(library="timm", name=called or name, make=make)


def _direct(name: str, build: Callable[[Any], nn.Module], size: int = 32) -> Case:
    """A model whose registered function takes no other sizes: its class, with what that function gives it.   build: from ``timm.models``."""

    def make() -> Trained:
        return Trained(build(importlib.import_module("timm.models")).train(), (images(size), classes()), nn.functional.cross_entropy)

    return Case(library="timm", name=name, make=make)


def _mixer(m: Any, block: str, **more: Any) -> nn.Module:
    mixer = m.mlp_mixer
    return mixer.MlpMixer(
        img_size=32, patch_size=8, embed_dim=32, num_blocks=2, block_layer=getattr(mixer, block), num_classes=CLASSES, **more
    )


def _metaformer(m: Any, **more: Any) -> nn.Module:
    return m.metaformer.MetaFormer(depths=(1, 1, 1, 1), dims=(16, 24, 32, 64), num_classes=CLASSES, **more)


def _poolformer(m: Any) -> nn.Module:
    return _metaformer(
        m,
        downsample_norm=None,
        mlp_act=nn.GELU,
        mlp_bias=True,
        norm_layers=m.metaformer.GroupNorm1,
        layer_scale_init_values=1e-5,
        res_scale_init_values=None,
        use_mlp_head=False,
    )


def _caformer(m: Any) -> nn.Module:
    parts = m.metaformer
    norms = [parts.LayerNorm2dNoBias] * 2 + [parts.LayerNormNoBias] * 2
    return _metaformer(m, token_mixers=[parts.SepConv, parts.SepConv, parts.Attention, parts.Attention], norm_layers=norms)


def _convformer(m: Any) -> nn.Module:
    return _metaformer(m, token_mixers=m.metaformer.SepConv, norm_layers=m.metaformer.LayerNorm2dNoBias)


def _volo(m: Any) -> nn.Module:
    return m.volo.VOLO(layers=(1, 1, 1, 1), embed_dims=(16, 32, 32, 32), num_heads=(2, 2, 2, 2), img_size=64, num_classes=CLASSES)


def _vgg(m: Any) -> nn.Module:
    return m.vgg.VGG([16, "M", 24, "M", 32, "M"], norm_layer=nn.BatchNorm2d, mlp_ratio=0.01, num_classes=CLASSES)


def _bit(m: Any) -> nn.Module:
    parts = m.resnetv2
    return parts.ResNetV2(
        [1, 1, 1, 1], channels=(128, 256, 256, 384), stem_chs=32, stem_type="fixed", conv_layer=parts.StdConv2d, num_classes=CLASSES
    )


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
_TESTS = (
    "byobnet", "convnext2", "convnext3", "efficientnet_evos", "efficientnet_gn", "efficientnet_ln", "maxvit", "nfnet", "resnet", "vit2", "vit3", "vit4",
)  # fmt: skip
"""timm's own smallest ones, each with parts (EvoNorm, parallel blocks, normalised attention) that are no other's."""

_NARROW = {"embed_dims": (16, 24, 32, 48), "depths": (1, 1, 1, 1)}

CASES: tuple[Case, ...] = (
    _timm("vit_tiny_patch16_224", 32, **_VIT),
    _timm("vit_tiny_patch16_224", 32, called="vit drop path", **_VIT, drop_path_rate=0.1, drop_rate=0.1),
    _timm("vit_base_patch16_siglip_224", 32, **_VIT),
    _timm("vit_relpos_small_patch16_224", 32, **_VIT),
    _timm("vit_srelpos_small_patch16_224", 32, **_VIT),
    _timm("vit_base_patch16_rope_reg1_gap_256", 32, **_VIT),
    _timm("deit_tiny_patch16_224", 32, **_VIT),
    _timm("deit_tiny_distilled_patch16_224", 32, **_VIT),
    _timm("deit3_small_patch16_224", 32, **_VIT),
    _timm("beit_base_patch16_224", 32, **_VIT),
    _timm("eva02_tiny_patch14_224", 32, **_VIT),
    _timm("cait_xxs24_224", 32, **_VIT),
    _timm("convit_tiny", 32, **{**_VIT, "embed_dim": 16, "num_heads": 2}),
    _timm("xcit_nano_12_p16_224", 32, **_VIT),
    _direct("mixer_s32_224", lambda m: _mixer(m, "MixerBlock")),
    _direct("resmlp_12_224", lambda m: _mixer(m, "ResBlock", mlp_ratio=4, norm_layer=m.mlp_mixer.Affine)),
    _direct("gmlp_ti16_224", lambda m: _mixer(m, "SpatialGatingBlock", mlp_ratio=6, mlp_layer=m.mlp_mixer.GatedMlp)),
    _direct("convmixer_768_32", lambda m: m.convmixer.ConvMixer(32, 2, 5, 4, act_layer=nn.ReLU, num_classes=CLASSES)),
    _timm("swin_tiny_patch4_window7_224", 32, img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
    _timm("swinv2_tiny_window8_256", 32, img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
    _timm("swinv2_cr_tiny_224", 32, img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
    _timm(
        "twins_svt_small",
        64,
        img_size=64,
        embed_dims=(16, 32),
        depths=(2, 2),
        num_heads=(1, 2),
        mlp_ratios=(2, 2),
        wss=(4, 4),
        sr_ratios=(4, 2),
    ),
    _timm("pit_ti_224", 64, img_size=64, patch_size=8, stride=4, base_dims=(8, 8, 8), depth=(1, 1, 1), heads=(2, 4, 4)),
    _timm("pvt_v2_b0", 64, **_NARROW, num_heads=(1, 2, 4, 4)),
    _direct("poolformer_s12", _poolformer, 64),
    _direct("caformer_s18", _caformer, 64),
    _direct("convformer_s18", _convformer, 64),
    _timm("coatnet_nano_rw_224", 64, img_size=64, embed_dim=(16, 32, 32, 64), depths=(1, 1, 1, 1)),
    _timm("coat_tiny", 64, img_size=64, embed_dims=(64, 64, 64, 64), serial_depths=(1, 1, 1, 1), parallel_depth=1, num_heads=8),
    _timm(
        "crossvit_tiny_240",
        64,
        img_size=64,
        img_scale=(1.0, 1.0),
        patch_size=(8, 16),
        embed_dim=(16, 32),
        num_heads=(2, 2),
        depth=((1, 1, 0),),
    ),
    _timm("tnt_s_patch16_224", 32, img_size=32, patch_size=8, embed_dim=32, inner_dim=8, depth=2, num_heads_inner=2, num_heads_outer=2),
    _timm("visformer_tiny", 64, img_size=64, embed_dim=32, depth=(1, 1, 1), num_heads=2, init_channels=8),
    _direct("volo_d1_224", _volo, 64),
    _direct(
        "nest_tiny", lambda m: m.nest.Nest(64, embed_dims=(16, 32), num_heads=(2, 2), depths=(1, 1), num_levels=2, num_classes=CLASSES), 64
    ),
    _timm("levit_128s", 64, img_size=64, embed_dim=(16, 32, 48), key_dim=8, num_heads=(2, 2, 2), depth=(1, 1, 1)),
    _timm("edgenext_xx_small", 64, dims=(16, 24, 32, 48), depths=(1, 1, 1, 1)),
    _timm("fastvit_t8", 64, layers=(1, 1, 1, 1), embed_dims=(16, 32, 64, 128)),
    _direct("focalnet_tiny_srf", lambda m: m.focalnet.FocalNet(depths=(1, 1, 1, 1), embed_dim=16, num_classes=CLASSES), 64),
    _timm("davit_tiny", 64, depths=(1, 1), embed_dims=(16, 32), num_heads=(2, 2)),
    _timm("hiera_tiny_224", 64, img_size=(64, 64), embed_dim=16, stages=(1, 1, 1), q_pool=2),
    _timm("convnext_atto", 64, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48)),
    _timm("convnextv2_atto", 64, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48)),
    _timm("resnet10t"),
    _timm("resnet14t"),
    _timm("resnet18"),
    _timm("resnet26d", layers=(1, 1, 1, 1)),
    _timm("resnext50_32x4d", layers=(1, 1, 1, 1)),
    _timm("seresnet18"),
    _timm("skresnet18", layers=(1, 1, 1, 1)),
    _timm("ecaresnet26t", layers=(1, 1, 1, 1)),
    _timm("resnest14d"),
    _timm("res2net50_26w_4s", layers=(1, 1, 1, 1)),
    _timm("resnetv2_50", layers=(1, 1, 1, 1)),
    _direct("resnetv2_50x1_bit", _bit, 64),
    _timm("nf_resnet26"),
    _direct("vgg11_bn", _vgg, 64),
    _timm("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    _timm("dla34", levels=(1, 1, 1, 1, 1, 1), channels=(8, 8, 16, 16, 32, 32)),
    _timm("mobilenetv3_small_050"),
    _timm("lcnet_035"),
    _timm("mobilenetv2_035"),
    _timm("mnasnet_small"),
    _direct("efficientnet_b0", lambda m: m.efficientnet._gen_efficientnet("efficientnet_b0", 0.25, 0.3, num_classes=CLASSES), 64),
    _direct("efficientnetv2_s", lambda m: m.efficientnet._gen_efficientnetv2_s("efficientnetv2_s", 0.25, 0.2, num_classes=CLASSES), 64),
    _timm("ghostnet_050"),
    _timm("tinynet_e"),
    _timm("regnetx_002"),
    _timm("regnety_002"),
    _timm("repvgg_a0"),
    _timm("repghostnet_050"),
    _timm("semnasnet_050"),
    _timm("vovnet39a", stage_conv_chs=(16, 16, 16, 16), stage_out_chs=(32, 32, 48, 48), block_per_stage=(1, 1, 1, 1), layer_per_block=2),
    _timm("mobilevit_xxs"),
    _timm("mobilevitv2_050"),
    _timm("eca_halonext26ts", 64),
    _timm("lambda_resnet26t", 64),
    _timm("bat_resnext26ts", 64),
    _timm("sequencer2d_s", 32, img_size=32, layers=(1, 1), patch_sizes=(4, 2), embed_dims=(16, 32), hidden_sizes=(8, 8), mlp_ratios=(2, 2)),
    _timm("repvit_m0_9", 64, embed_dim=(16, 24, 32, 48), depth=(1, 1, 1, 1)),
    _timm("efficientvit_m0", 64, img_size=64),
    _timm("starnet_s050", 64, depths=(1, 1, 1, 1)),
    _timm("mambaout_femto", 64, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48)),
    _timm("shvit_s1", 64),
    *(_timm(f"test_{name}", 160 if name in ("maxvit", "vit3") else 64) for name in _TESTS),
    _timm("efficientformer_l1", 224, depths=(1, 1, 1, 2), embed_dims=(16, 24, 32, 48), num_vit=1),
    _timm("efficientformerv2_s0", 64, img_size=64, depths=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48), num_vit=1),
    _timm("efficientvit_b0", 64, widths=(8, 16, 16, 32, 32), depths=(1, 1, 1, 1, 1), head_dim=8, head_widths=(64, 64)),
    _timm("inception_next_atto", 64, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48)),
    _timm("mvitv2_tiny", 64, img_size=64),
    _timm("nextvit_small", 64),
    _timm("swiftformer_xs", 64, layers=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48)),
    _timm("fasternet_t0", 64, embed_dim=16, depths=(1, 1, 1, 1)),
    _timm("samvit_base_patch16", 64, **{**_VIT, "img_size": 64, "global_attn_indexes": (1,), "window_size": 4}),
    _timm("efficientvim_m1", 64, embed_dim=(16, 32, 48), depths=(1, 1, 1)),
    _timm("lowformer_b0", 64, width_list=(8, 16, 16, 32, 32), depth_list=(0, 1, 1, 1, 1)),
    _timm("darknet17", 64),
    _timm("cs3darknet_focus_s", 64),
    _timm("hgnetv2_b0", 64),
    _timm("rexnet_100", 64),
    _timm("mixnet_s", 64),
    _timm("fbnetc_100", 64),
    _timm("hardcorenas_a", 64),
    _timm("mobilenetv4_conv_small_035", 64),
    _timm("selecsls42", 64),
    _timm("xception41p", 64),
    _timm("mobileone_s0", 64),
    _timm("gcvit_xxtiny", 64, img_size=64),
    _timm("tiny_vit_5m_224", 224, depths=(1, 1, 1, 1)),
    _timm("rdnet_tiny", 64),
    _timm("dm_nfnet_f0", 64),
    _timm("legacy_seresnet18", 64),
    _timm("hrnet_w18_small", 64),
)
