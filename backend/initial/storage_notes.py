"""What is known of the values of a storage that has none: a module's parameters while it is built on the meta device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend.initial.recipe import Draw, Fill, Recipe, Step
from backend.initial.values import Box, numel_of, overlap
from planner.ir.errors import Unsupported
from planner.ir.tensor import DType

__all__ = ["Layout", "StorageNote", "box_shown", "covers", "has_no_values", "real_view", "recipe_of"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in its storage.  A reference to the tensor itself would keep ``module.to`` from swapping it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        return Layout(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return self.stride == tuple(math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))


@dataclass(slots=True)
class StorageNote:
    """How the values of a storage are made: by ``steps``, or they are ``value``, or ``why`` says why neither is known.

    base: of the tensor that made the storage.
    """

    base: Layout
    steps: list[Step] = field(default_factory=list)
    value: Tensor | None = None
    why: str = ""
    dtype: torch.dtype | None = None  # before the first step

    @property
    def is_random(self) -> bool:
        return bool(self.why) or any(isinstance(step, Draw) for step in self.steps)

    @property
    def is_filled(self) -> bool:
        """Draws and fills reach every element: one of them the whole, or several disjoint boxes."""
        missing = self.base.numel
        reached: list[Box] = []
        for step in self.steps:
            if not isinstance(step, Draw | Fill):
                continue
            if step.where is None:
                return True
            if all(overlap(step.where, box) is None for box in reached):
                missing -= numel_of(step.where)
                reached.append(step.where)
        return missing == 0


def has_no_values(value: object) -> bool:
    """A tensor of shapes only."""
    return isinstance(value, Tensor) and value.device.type == "meta"


def covers(view: Tensor, noted: StorageNote) -> bool:
    """The view shows all elements of the tensor that made the storage, in its order."""
    return Layout.of(view) == noted.base


def box_shown(view: Tensor, base: Layout) -> Box | None:
    """The box of a contiguous ``base`` that the view shows, dims possibly dropped (select) or added (unsqueeze); None when it is none."""
    if not base.is_contiguous:
        return None
    left = int(view.storage_offset()) - base.offset
    shown = [(extent, stride) for extent, stride in zip(view.shape, view.stride(), strict=True) if extent != 1]
    box: list[tuple[int, int]] = []
    for extent, stride in zip(base.shape, base.stride, strict=True):
        offset, left = divmod(left, stride) if stride else (0, left)
        match = next((pair for pair in shown if pair[1] == stride and extent != 1), None)
        if match is not None:
            shown.remove(match)
        box.append((offset, match[0] if match is not None else 1))
        if offset + box[-1][1] > extent:
            return None
    return tuple(box) if not shown and left == 0 else None


def real_view(view: Tensor, value: Tensor) -> Tensor:
    """The same view of the real tensor."""
    return value.as_strided(view.shape, view.stride(), view.storage_offset())


def recipe_of(what: str, name: str, tensor: Tensor, noted: StorageNote, names: dict[str, str]) -> Recipe:
    way_out = "give its values instead: --init module, or --init weights:FILE"
    if noted.why:
        raise Unsupported(f"{what} {name} is initialised by {noted.why}, which cannot be drawn in parts; {way_out}")
    if not noted.is_filled:
        raise Unsupported(f"{what} {name} keeps memory that was never filled (torch.empty); initialise it, or {way_out}")
    boxed = any(getattr(step, "where", None) is not None for step in noted.steps)
    if tensor.numel() != noted.base.numel or (boxed and Layout.of(tensor) != noted.base):
        raise Unsupported(f"{what} {name} of shape {tuple(tensor.shape)} is a view of a larger or transposed tensor; {way_out}")
    steps: list[Step] = []
    for number, step in enumerate(noted.steps):
        # A draw is named after the first parameter that has it, so that adding a layer does not change the others.
        steps.append(replace(step, key=names.setdefault(step.key, f"{name}#{number}")) if isinstance(step, Draw) else step)
    return Recipe(shape=tuple(tensor.shape), dtype=DType.parse(str(noted.dtype or tensor.dtype)), steps=tuple(steps))
