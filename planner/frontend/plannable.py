"""Modules of which no step can be recorded, refused before anything is traced."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["refuse_module"]


def refuse_module(module: object) -> None:
    """Raises InvalidProgram or Unsupported for what is no module, a module of TorchScript, or one with parameters that have no shape yet."""
    if not isinstance(module, nn.Module):
        raise InvalidProgram(f"a Program needs an nn.Module but was given a {type(module).__name__}")
    for name, child in module.named_modules():
        where = f"module {name!r}" if name else "the root module"
        if isinstance(child, torch.jit.ScriptModule):
            raise Unsupported(
                f"{where} is a module of TorchScript ({type(child).__name__}), whose code torch runs by itself, so that no step of it can be "
                "recorded; give the nn.Module that it was made from"
            )
        held = (*child.named_parameters(recurse=False), *child.named_buffers(recurse=False))
        for own, tensor in held:
            if is_lazy(tensor):
                raise InvalidProgram(
                    f"{own} of {where} ({type(child).__name__}) has no shape before the first forward pass; call the module once on a batch, then "
                    "make the Program, with an optimizer made after that call"
                )
