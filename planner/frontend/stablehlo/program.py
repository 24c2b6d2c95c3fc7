"""A listing with its signature as a Program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from planner.frontend.program import Program
from planner.frontend.stablehlo.listing import Listing
from planner.frontend.stablehlo.module import LossModule, Shapes
from planner.frontend.stablehlo.paths import names_of_paths
from planner.frontend.stablehlo.performing.perform import check_known
from planner.frontend.stablehlo.step import State, is_long, recognised, simplified
from planner.ir.errors import InvalidProgram

__all__ = ["Signature", "loss_program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function's inputs and results are.

    paths: of the arrays of its state, which are its first inputs.   num_batch: how many inputs follow, the batch.
    is_step: it returns a state like the given one, and then the loss; else the loss alone.
    """

    paths: tuple[str, ...]
    num_batch: int
    is_step: bool


def loss_program(
    lowered: Callable[[Shapes], Listing],
    signature: Signature,
    *,
    values: Sequence[Tensor],
    example: Sequence[Tensor],
    name: str,
    optimizer: Any = None,
    data: Callable[[int], tuple[Tensor, ...]] | None = None,
    **options: Any,
) -> Program:
    """The Program of a function.

    Args:
        lowered: shapes of a batch -> the function's listing.   values: of the state.   example: one global batch.
        optimizer, data, options: as Program takes them.

    Raises:
        Unsupported, InvalidProgram: see from_jax.
    """
    listing = lowered(tuple(tuple(tensor.shape) for tensor in example))
    num_state = len(signature.paths)
    if len(listing.inputs) != num_state + signature.num_batch:
        raise InvalidProgram(
            f"{name} has {len(listing.inputs)} inputs, but its arguments hold {num_state} and {signature.num_batch} arrays; lower it with "
            "jax.jit(..., keep_unused=True), and give every array as an argument"
        )
    numbers = [given.value for given in listing.inputs]
    state, batch = numbers[:num_state], numbers[num_state:]

    def loss_at(shapes: Shapes) -> Listing:
        made = simplified(_loss_of(lowered(shapes)))
        check_known(made, name)
        return made

    new_of = dict(zip(state, listing.results, strict=False)) if signature.is_step else {}
    needed = {value for operation in _loss_of(listing).operations for value in operation.operands}
    held = [number for number in state if number in needed]
    paths, value_of = dict(zip(state, signature.paths, strict=True)), dict(zip(numbers, (*values, *example), strict=True))
    trained = [number for number in held if value_of[number].dtype.is_floating_point and new_of.get(number) != number]
    if not trained:
        raise InvalidProgram(f"the loss of {name} depends on no array of floating numbers of its state that the step changes")
    loss_at(tuple(tuple(tensor.shape) for tensor in example))
    names = dict(zip(held, names_of_paths([paths[number] for number in held], [paths[number] for number in trained]), strict=True))
    module = LossModule(loss_at, {number: (names[number], value_of[number]) for number in held}, frozenset(trained), batch)
    if signature.is_step:
        if optimizer is not None:
            raise InvalidProgram(f"{name} is a step, which says its own optimizer; leave optimizer= out, or give loss(params, batch)")
        parameters = {number: names[number] for number in trained}
        seen, few = _few_samples(lowered, listing, example)
        held_values = dict(zip(numbers, (*values, *few), strict=True))
        given = State(state=tuple(state), batch=tuple(batch), values=held_values, names=parameters, paths=paths)
        update = recognised(seen, module, given, name)
        optimizer, options = update.optimizer, {**update.options, **options}
    return Program(module, tuple(example), optimizer=optimizer, name=name, data=data, **options)


def _few_samples(lowered: Callable[[Shapes], Listing], listing: Listing, example: Sequence[Tensor]) -> tuple[Listing, Sequence[Tensor]]:
    """The step at which its update is looked at: that of two samples, where the whole batch would take long and the function can be lowered so."""
    sizes = {tensor.shape[0] for tensor in example if tensor.ndim}
    if not is_long(listing) or len(sizes) != 1 or min(sizes) <= 2:
        return listing, example
    few = [tensor[:2] if tensor.ndim else tensor for tensor in example]
    try:
        return lowered(tuple(tuple(tensor.shape) for tensor in few)), few
    except Exception:  # made for this batch alone; what is left out then is told where it is
        return listing, example


def _loss_of(listing: Listing) -> Listing:
    return listing.needed_for(listing.results[-1:])
