"""Small ordinary models with data, to plan, simulate and run without writing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planner.frontend import Program
from regista.zoo.convnet import convnet
from regista.zoo.gpt import gpt
from regista.zoo.mlp import mlp

__all__ = ["ZOO"]

ZOO: Mapping[str, Callable[..., Program]] = MappingProxyType({"convnet": convnet, "gpt": gpt, "gpt2": gpt, "mlp": mlp})
