"""Values drawn by counter (backend.initial.philox): a description that every rank has, of which it draws just its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from backend.initial.recipe import Recipe
from backend.initial.recording import record
from backend.initial.values import Box, Given, check_box, known_type, whole_box
from planner.frontend import Deferred
from planner.ir.errors import InvalidPlan
from planner.ir.tensor import TensorType

__all__ = ["Drawn", "InitialValues", "initial_values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What ``seed`` makes of the recipes.  Plain data: a description of any model is some kilobytes."""

    seed: int
    recipes: Mapping[str, Recipe]

    def type_of(self, name: str) -> TensorType | None:
        recipe = self.recipes.get(name)
        return None if recipe is None else recipe.type

    def part(self, name: str, box: Box) -> Tensor:
        check_box(name, box, known_type(self, name).shape)
        return self.recipes[name].part(self.seed, box)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialValues:
    """Initial values of a module's parameters and buffers.

    drawn: those that a seed makes.   fixed: those that come out of a computation without chance (masks, tables of positions), as tensors.
    """

    drawn: Drawn
    fixed: Given

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.drawn.recipes, *self.fixed.tensors)

    def type_of(self, name: str) -> TensorType | None:
        return self.drawn.type_of(name) or self.fixed.type_of(name)

    def part(self, name: str, box: Box) -> Tensor:
        """The box (offset and length per dim) of a value: bit-equal to that slice of ``whole(name)``, whoever asks and in whatever order.

        Raises:
            InvalidPlan: the module has no such parameter or buffer, or the box reaches beyond it.
        """
        if self.drawn.type_of(name) is not None:
            return self.drawn.part(name, box)
        return self.fixed.part(name, box)

    def whole(self, name: str) -> Tensor:
        """Raises InvalidPlan as ``part`` does."""
        tensor_type = self.type_of(name)
        if tensor_type is None:
            raise InvalidPlan(f"the module has no parameter or buffer {name}; it has {', '.join(self.names[:6])} ...")
        return self.part(name, whole_box(tensor_type.shape))


def initial_values(module: Deferred | Callable[[], nn.Module], seed: int) -> InitialValues:
    """The module's own initialisation, drawn by counter.

    The module is built once without memory, and what it does to each parameter is noted (backend.initial.recording); the distributions are
    its own, the random numbers are those of ``seed``: number i of a parameter is a function of (seed, name, i).

    Args:
        module: a function that builds the module (or a Deferred).

    Raises:
        Unsupported: a parameter is initialised in a way that cannot be drawn in parts; the message names both.
    """
    recorded = record(module.build if isinstance(module, Deferred) else module)
    return InitialValues(drawn=Drawn(seed=seed, recipes=recorded.recipes), fixed=Given(recorded.fixed))
