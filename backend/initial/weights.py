"""Weights that are given in a file of ``torch.save``: mapped, so that a rank reads the pages of its own part and nobody holds the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from backend.initial.values import Box, Given
from planner.ir.errors import InvalidFile
from planner.ir.tensor import TensorType

__all__ = ["Weights"]

_WRAPPERS = ("state_dict", "model", "module")


@dataclass(frozen=True)
class Weights:
    """A file with a mapping of names to tensors (a state_dict), or one that holds it under ``state_dict``, ``model`` or ``module``.

    Raises (at the first question):
        InvalidFile: it is missing, or of another form; with the way out.
    """

    path: str

    @cached_property
    def _given(self) -> Given:
        return Given(_map(self.path))

    def type_of(self, name: str) -> TensorType | None:
        return self._given.type_of(name)

    def part(self, name: str, box: Box) -> Tensor:
        return self._given.part(name, box)


def _map(path: str) -> Mapping[str, Tensor]:
    if not Path(path).is_file():
        raise InvalidFile(f"weights {path} do not exist; give a file of torch.save(module.state_dict(), FILE)")
    try:
        loaded = torch.load(path, mmap=True, weights_only=True)
    except (RuntimeError, ValueError, UnpicklingError, EOFError) as error:
        text = str(error).strip().split("\n")[0]
        raise InvalidFile(
            f"weights {path} cannot be mapped ({type(error).__name__}: {text}); "
            f"write them anew with this torch: torch.save(module.state_dict(), FILE)"
        ) from error
    for key in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    tensors = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)} if isinstance(loaded, Mapping) else {}
    if not tensors:
        raise InvalidFile(
            f"weights {path} hold a {type(loaded).__name__} without tensors; give a file of torch.save(module.state_dict(), FILE)"
        )
    return tensors
