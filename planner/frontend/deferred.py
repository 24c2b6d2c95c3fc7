"""A module that exists twice: at once as a skeleton of shapes, and with values only when somebody asks for them.

Planning reads names, shapes and dtypes; so a model of 10^10 parameters is planned on a laptop, and only who runs it pays for its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Deferred"]


@dataclass(frozen=True, slots=True)
class Deferred:
    """How to build a module.

    build: gives the same module, with the same values, each time it is called.  It must also run under ``torch.device("meta")``:
        it creates tensors, and never reads one.
    """

    build: Callable[[], nn.Module]

    def skeleton(self) -> nn.Module:
        """The module on the meta device: every name, shape and dtype, no memory and no values."""
        with torch.device("meta"):
            return self.build()
