"""torchvision: its classes, with fewer and narrower layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.corpus.case import BATCH, CLASSES, Case, Trained, classes, images

__all__ = ["CASES"]


def _case(name: str, build: Callable[[Any], nn.Module], batch: Callable[[], Any], loss: Callable[..., Tensor]) -> Case:
    return Case(
        library="torchvision", name=name, make=lambda: Trained(build(importlib.import_module("torchvision.models")).train(), batch(), loss)
    )


def _labelled(size: int) -> tuple[Tensor, Tensor]:
    return images(size), classes()


def _image(name: str, build: Callable[[Any], nn.Module], size: int = 64, loss: Callable[..., Tensor] = nn.functional.cross_entropy) -> Case:
    return _case(name, build, partial(_labelled, size), loss)


def _video(name: str, build: Callable[[Any], nn.Module], frames: int = 4, size: int = 32) -> Case:
    return _case(name, build, lambda: (torch.randn(BATCH, 3, frames, size, size), classes()), nn.functional.cross_entropy)


def _segmented(name: str, build: Callable[[Any], nn.Module]) -> Case:
    def loss(out: dict[str, Tensor], target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out["out"], target)

    return _case(name, build, lambda: (images(64), torch.randint(0, CLASSES, (BATCH, 64, 64))), loss)


def _with_helpers(out: Any, target: Tensor) -> Tensor:
    """GoogLeNet's and Inception's, as their paper has it."""
    return sum(
        (0.3 * nn.functional.cross_entropy(o, target) for o in out[1:] if o is not None), nn.functional.cross_entropy(out[0], target)
    )


def _resnet(block: str, layers: tuple[int, ...] = (1, 1, 1, 1), **more: Any) -> Callable[[Any], nn.Module]:
    return lambda m: m.resnet.ResNet(getattr(m.resnet, block), list(layers), num_classes=CLASSES, **more)


def _efficientnet(m: Any) -> nn.Module:
    config = m.efficientnet.MBConvConfig
    setting = [config(1, 3, 1, 16, 16, 1), config(4, 3, 2, 16, 24, 2), config(4, 5, 2, 24, 32, 1)]
    return m.efficientnet.EfficientNet(setting, dropout=0.2, num_classes=CLASSES)


def _efficientnet_v2(m: Any) -> nn.Module:
    fused, config = m.efficientnet.FusedMBConvConfig, m.efficientnet.MBConvConfig
    setting = [fused(1, 3, 1, 16, 16, 1), fused(4, 3, 2, 16, 24, 1), config(4, 3, 2, 24, 32, 2)]
    return m.efficientnet.EfficientNet(setting, dropout=0.2, num_classes=CLASSES, last_channel=64)


def _mobilenet_v3(m: Any) -> nn.Module:
    config = partial(m.mobilenetv3.InvertedResidualConfig, dilation=1, width_mult=1.0)
    setting = [config(16, 3, 16, 16, True, "RE", 2), config(16, 3, 48, 24, False, "RE", 2), config(24, 5, 64, 24, True, "HS", 1)]
    return m.mobilenetv3.MobileNetV3(setting, 64, num_classes=CLASSES)


def _convnext(m: Any) -> nn.Module:
    config = m.convnext.CNBlockConfig
    return m.convnext.ConvNeXt([config(16, 32, 2), config(32, None, 2)], stochastic_depth_prob=0.1, num_classes=CLASSES)


def _swin(m: Any, **more: Any) -> nn.Module:
    return m.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.2, num_classes=CLASSES, **more)


def _swin_v2(m: Any) -> nn.Module:
    swin = m.swin_transformer
    return _swin(m, block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2)


def _swin_3d(m: Any) -> nn.Module:
    return m.video.SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 4], [4, 4, 4], stochastic_depth_prob=0.1, num_classes=CLASSES)


def _mvit(m: Any) -> nn.Module:
    mvit = m.video.mvit
    config = mvit.MSBlockConfig
    setting = [
        config(num_heads=1, input_channels=16, output_channels=16, kernel_q=[], kernel_kv=[3, 3, 3], stride_q=[], stride_kv=[1, 2, 2]),
        config(
            num_heads=2,
            input_channels=16,
            output_channels=32,
            kernel_q=[3, 3, 3],
            kernel_kv=[3, 3, 3],
            stride_q=[1, 2, 2],
            stride_kv=[1, 1, 1],
        ),
    ]
    return m.video.MViT(
        (32, 32),
        4,
        setting,
        residual_pool=False,
        residual_with_cls_embed=True,
        rel_pos_embed=False,
        proj_after_attn=False,
        stochastic_depth_prob=0.2,
        num_classes=CLASSES,
    )


def _vit(m: Any) -> nn.Module:
    return m.VisionTransformer(32, 8, 2, 4, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=CLASSES)


def _regnet(m: Any) -> nn.Module:
    params = m.regnet.BlockParams.from_init_params(depth=4, w_0=16, w_a=16.0, w_m=2.0, group_width=8, se_ratio=0.25)
    return m.RegNet(params, stem_width=16, num_classes=CLASSES)


def _maxvit(m: Any) -> nn.Module:
    return m.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, stochastic_depth_prob=0.2, num_classes=CLASSES)


def _fcn(m: Any, head: str) -> nn.Module:
    body = m._utils.IntermediateLayerGetter(m.resnet.ResNet(m.resnet.Bottleneck, [1, 1, 1, 1]), return_layers={"layer1": "out"})
    if head == "fcn":
        return m.segmentation.FCN(body, m.segmentation.fcn.FCNHead(256, CLASSES))
    return m.segmentation.DeepLabV3(body, m.segmentation.deeplabv3.DeepLabHead(256, CLASSES, (2, 4, 6)))


def _lraspp(m: Any) -> nn.Module:
    body = m._utils.IntermediateLayerGetter(_mobilenet_v3(m).features, return_layers={"1": "low", "4": "high"})
    return m.segmentation.LRASPP(body, 16, 144, CLASSES, 16)


def _video_resnet(m: Any, conv: str) -> nn.Module:
    resnet = m.video.resnet
    stem = resnet.R2Plus1dStem if conv == "Conv2Plus1D" else resnet.BasicStem
    return m.video.VideoResNet(resnet.BasicBlock, [getattr(resnet, conv)] * 4, [1, 1, 1, 1], stem, num_classes=CLASSES)


CASES: tuple[Case, ...] = (
    _image("resnet", _resnet("BasicBlock")),
    _image("resnet bottleneck", _resnet("Bottleneck")),
    _image("resnext", _resnet("Bottleneck", groups=4, width_per_group=4)),
    _image("wide resnet", _resnet("Bottleneck", width_per_group=96)),
    _image("alexnet", lambda m: m.AlexNet(num_classes=CLASSES)),
    _image("squeezenet 1.0", lambda m: m.SqueezeNet("1_0", num_classes=CLASSES)),
    _image("squeezenet 1.1", lambda m: m.SqueezeNet("1_1", num_classes=CLASSES)),
    _image("densenet", lambda m: m.DenseNet(8, (2, 2, 2, 2), 16, num_classes=CLASSES)),
    _image("googlenet", lambda m: m.GoogLeNet(num_classes=CLASSES, init_weights=False), loss=_with_helpers),
    _image("mobilenet_v2", lambda m: m.MobileNetV2(CLASSES, 0.5, [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]])),
    _image("mobilenet_v3", _mobilenet_v3),
    _image("mnasnet", lambda m: m.MNASNet(0.35, num_classes=CLASSES)),
    _image("shufflenet_v2", lambda m: m.ShuffleNetV2([2, 2, 2], [24, 32, 48, 64, 96], num_classes=CLASSES)),
    _image("efficientnet", _efficientnet),
    _image("efficientnet_v2", _efficientnet_v2),
    _image("regnet", _regnet),
    _image("convnext", _convnext),
    _image("vit", _vit, 32),
    _image("swin", _swin, 32),
    _image("swin_v2", _swin_v2, 32),
    _image("maxvit", _maxvit),
    _segmented("fcn", partial(_fcn, head="fcn")),
    _segmented("deeplabv3", partial(_fcn, head="deeplab")),
    _segmented("lraspp", _lraspp),
    _video("r3d", partial(_video_resnet, conv="Conv3DSimple")),
    _video("mc3", partial(_video_resnet, conv="Conv3DNoTemporal")),
    _video("r2plus1d", partial(_video_resnet, conv="Conv2Plus1D")),
    _video("mvit", _mvit),
    _video("swin3d", _swin_3d),
)
