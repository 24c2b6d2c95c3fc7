"""A module that exists twice: at once as a skeleton of shapes, and with values only when somebody asks for them.

Planning reads names, shapes and dtypes; so a model of 10^10 parameters is planned on a laptop, and only who runs it pays for its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from threading import Thread

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["Deferred", "import_dynamo"]


def import_dynamo() -> None:
    """Import torch._dynamo, as torch does at the first op on the meta device or under a dispatch mode, from a thread of its own.

    The import leaves a frame that refers to itself, and so holds the frames of all who called, with what they hold, until the collector comes:
    after a search of GPT-3 on 1,024 devices that is a second and a half of collecting.
    """
    importing = Thread(target=import_module, args=("torch._dynamo",), daemon=True)
    importing.start()
    importing.join()


@dataclass(frozen=True, slots=True)
class Deferred:
    """How to build a module.

    build: gives the same module, with the same values, each time it is called.  It must also run under ``torch.device("meta")``:
        it creates tensors, and never reads one.
    """

    build: Callable[[], nn.Module]

    def skeleton(self) -> nn.Module:
        """The module on the meta device: every name, shape and dtype, no memory and no values."""
        with torch.device("meta"), _WithoutValues():
            return self.build()


class _WithoutValues(TorchFunctionMode):
    """Inside, ``torch.nn.init`` gives tensors back as they are: those on the meta device have no values, and to draw them took half of the time."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        named = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__ and func.__name__.endswith("_"):
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)
