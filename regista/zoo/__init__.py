"""Ordinary models with data, to plan, simulate and run without writing one: small ones, and published ones in their published sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planner.frontend import Program
from regista.zoo.alexnet import alexnet
from regista.zoo.bert import bert, dnabert
from regista.zoo.convnet import convnet
from regista.zoo.dlrm import dlrm
from regista.zoo.gpt import gpt
from regista.zoo.gpt_family import gpt2, gpt3
from regista.zoo.insightface import insightface
from regista.zoo.llama import llama3
from regista.zoo.mlp import mlp
from regista.zoo.moe import moe
from regista.zoo.resnet import resnet50, wide_resnet
from regista.zoo.t5 import t5
from regista.zoo.unet import unet
from regista.zoo.vgg import vgg19
from regista.zoo.vit import vit
from regista.zoo.wide_deep import wide_deep

__all__ = ["ZOO"]

ZOO: Mapping[str, Callable[..., Program]] = MappingProxyType(
    {
        "alexnet": alexnet,
        "bert": bert,
        "convnet": convnet,
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
)
