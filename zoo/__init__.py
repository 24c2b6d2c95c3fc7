"""Ordinary models with data, to plan, simulate and run without writing one: small ones, and published ones in their published sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planner.frontend import Program
from zoo.language.bert import bert, dnabert
from zoo.language.deepseek import deepseek
from zoo.language.gpt import gpt
from zoo.language.gpt_family import gpt2, gpt3
from zoo.language.llama import llama3
from zoo.language.moe import moe
from zoo.language.t5 import t5
from zoo.mlp import mlp
from zoo.recommendation.dlrm import dlrm
from zoo.recommendation.wide_deep import wide_deep
from zoo.sizes import limited
from zoo.vision.alexnet import alexnet
from zoo.vision.convnet import convnet
from zoo.vision.insightface import insightface
from zoo.vision.resnet import resnet50, wide_resnet
from zoo.vision.unet import unet
from zoo.vision.vgg import vgg19
from zoo.vision.vit import vit

__all__ = ["ZOO"]

_FACTORIES: Mapping[str, Callable[..., Program]] = {
    "alexnet": alexnet,
    "bert": bert,
    "convnet": convnet,
    "deepseek": deepseek,
    "dlrm": dlrm,
    "dnabert": dnabert,
    "gpt": gpt,
    "gpt2": gpt2,
    "gpt3": gpt3,
    "insightface": insightface,
    "llama3": llama3,
    "mlp": mlp,
    "moe": moe,
    "resnet50": resnet50,
    "t5": t5,
    "unet": unet,
    "vgg19": vgg19,
    "vit": vit,
    "wide_deep": wide_deep,
    "wide_resnet": wide_resnet,
}

ZOO: Mapping[str, Callable[..., Program]] = MappingProxyType({name: limited(factory) for name, factory in _FACTORIES.items()})
