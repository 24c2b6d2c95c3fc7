"""The values of a step's states before the first step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram
from planner.ir.graph import InputKind, LogicalGraph

__all__ = ["first_values"]


def first_values(graph: LogicalGraph, held: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of the state inputs by GraphInput.name, without working copies: they are parameters, cast.

    Args:
        held: parameters and buffers of the module.   given: all other states; optimizer state that is not there is zero, and a buffer that
            each step makes anew, in another shape than the module's.

    Raises:
        InvalidProgram: the module has no values (meta or fake tensors).
    """
    state: dict[str, Tensor] = {}
    for entry in graph.inputs:
        type_ = graph.values[entry.value]
        made_anew = entry.kind is InputKind.BUFFER and held[entry.name].shape != type_.shape  # by every step (tracing.repeat.fit_buffers)
        if entry.kind in (InputKind.PARAMETER, InputKind.BUFFER) and not made_anew:
            state[entry.name] = _copied(held[entry.name], entry.name)
        elif made_anew or (entry.kind is InputKind.OPTIMIZER_STATE and entry.name not in given):
            state[entry.name] = torch.zeros(type_.shape, dtype=getattr(torch, type_.dtype.value))
        elif entry.kind.is_state and entry.kind is not InputKind.WORKING_COPY:
            state[entry.name] = _copied(given[entry.name], entry.name)
    return state


def _copied(tensor: Tensor, name: str) -> Tensor:
    if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        raise InvalidProgram(f"{name} has no values (it is on the meta device or fake); build the module with real weights to run it")
    return tensor.detach().cpu().contiguous().clone()
