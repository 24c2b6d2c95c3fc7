"""timm: models by name, with fewer and narrower layers where they take it."""

from __future__ import annotations

import importlib

from torch import nn

from experiments.corpus.case import CLASSES, Case, Trained, classes, images

__all__ = ["CASES"]


def _timm(name: str, size: int = 64, *, called: str = "", **sizes: object) -> Case:
    def make() -> Trained:
        module = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=CLASSES, **sizes)
        return Trained(module.train(), (images(size), classes()), nn.functional.cross_entropy)

    return Case(library="timm", name=called or name, make=make)


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
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
    _timm("mixer_s32_224", 32, img_size=32, patch_size=8, embed_dim=32, num_blocks=2),
    _timm("resmlp_12_224", 32, img_size=32, patch_size=8, embed_dim=32, num_blocks=2),
    _timm("gmlp_ti16_224", 32, img_size=32, patch_size=8, embed_dim=32, num_blocks=2),
    _timm("convmixer_768_32", 32, dim=32, depth=2, patch_size=4, kernel_size=5),
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
    _timm("pvt_v2_b0", 64, **_NARROW),
    _timm("poolformer_s12", 64, dims=(16, 24, 32, 48), depths=(1, 1, 1, 1)),
    _timm("caformer_s18", 64, dims=(16, 24, 32, 64), depths=(1, 1, 1, 1)),
    _timm("coatnet_nano_rw_224", 64, img_size=64, embed_dim=(16, 32, 32, 64), depths=(1, 1, 1, 1)),
    _timm("coat_tiny", 64, img_size=64, embed_dims=(16, 16, 16, 16), serial_depths=(1, 1, 1, 1), parallel_depth=1, num_heads=2),
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
    _timm(
        "volo_d1_224",
        64,
        img_size=64,
        layers=(1, 1),
        embed_dims=(16, 32),
        num_heads=(2, 2),
        mlp_ratios=(2, 2),
        downsamples=(True, False),
        outlook_attention=(True, False),
        post_layers=("ca", "ca"),
    ),
    _timm("nest_tiny", 64, img_size=64, embed_dims=(16, 32), num_heads=(2, 2), depths=(1, 1), num_levels=2),
    _timm("levit_128s", 64, img_size=64, embed_dim=(16, 32, 48), key_dim=8, num_heads=(2, 2, 2), depth=(1, 1, 1)),
    _timm("edgenext_xx_small", 64, dims=(16, 24, 32, 48), depths=(1, 1, 1, 1)),
    _timm("fastvit_t8", 64, layers=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48)),
    _timm("focalnet_tiny_srf", 32, depths=(1, 1, 1, 1), embed_dim=16),
    _timm("davit_tiny", 64, depths=(1, 1), embed_dims=(16, 32), num_heads=(2, 2), num_groups=(2, 2)),
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
    _timm("resnetv2_50x1_bit", layers=(1, 1, 1, 1)),
    _timm("nf_resnet26"),
    _timm("vgg11_bn", 32, num_features=64, feature_window_size=1),
    _timm("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    _timm("dla34", levels=(1, 1, 1, 1, 1, 1), channels=(8, 8, 16, 16, 32, 32)),
    _timm("mobilenetv3_small_050"),
    _timm("lcnet_035"),
    _timm("mobilenetv2_035"),
    _timm("mnasnet_small"),
    _timm("efficientnet_b0", channel_multiplier=0.25, depth_multiplier=0.3),
    _timm("efficientnetv2_rw_t", channel_multiplier=0.25, depth_multiplier=0.2),
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
)
