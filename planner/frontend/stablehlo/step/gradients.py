"""Are a step's gradients those of its loss?  Clipping is told apart, and the rest is compared at values.

A step may differentiate otherwise than its loss says: stop_gradient, custom_vjp, a loss that is scaled.  StableHLO does not show it, so both
are computed once, in float64: the values that take the gradients' places, by the step's own operations, and the gradients of the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.frontend.stablehlo.listing import Listing
from planner.frontend.stablehlo.performing import perform
from planner.frontend.stablehlo.step.cuts import Dependence
from planner.ir.errors import Unsupported

__all__ = ["Clipping", "OtherGradient", "clipping_of", "compared", "is_long"]

_LOGGER = logging.getLogger("planner.frontend")
_MOST_WORK = 3e11
"""Operations up to which gradients are compared: half a minute of one core."""


class OtherGradient(Unsupported):
    """A step's gradient is not that of its loss."""

    def __init__(self, name: str, parameter: str) -> None:
        super().__init__(
            f"{name} takes another gradient of {parameter} than that of its loss (stop_gradient, custom_vjp, or a loss that is not the one "
            "returned); return the loss that is differentiated, and write forward without these"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """before: parameter -> the value of its gradient before clipping.   max_norm: None where nothing is clipped."""

    before: Mapping[int, int]
    max_norm: float | None


def clipping_of(dependence: Dependence, gradients: Mapping[int, int], tainted: set[int], name: str) -> Clipping:
    """What lies between the gradients and the values that the updates read: nothing, or clip_by_global_norm.

    Args:
        gradients: parameter -> the value that its update reads.

    Raises:
        Unsupported: a choice between values that is no clipping by the norm of all gradients.
    """
    before = {parameter: _chosen(dependence, value, tainted) for parameter, value in gradients.items()}
    if before == dict(gradients):
        return Clipping(before=before, max_norm=None)
    part = dependence.between(before.values(), gradients.values())
    types = dependence.listing.types
    generator = torch.Generator().manual_seed(0)
    shapes = [(value, types[value].shape) for value in before.values()]
    given = {value: torch.randn(shape, generator=generator, dtype=torch.float64) for value, shape in shapes}

    def clipped(scale: float) -> tuple[float, list[Tensor], list[Tensor]]:
        scaled = {value: tensor * scale for value, tensor in given.items()}
        norm = float(torch.stack([tensor.norm() for tensor in scaled.values()]).norm())
        return norm, list(scaled.values()), perform(part, scaled, wide=True)

    refusal = Unsupported(
        f"{name} changes its gradients before the update in a way that is no optax.clip_by_global_norm; take that one, "
        "or give loss(params, batch) and optimizer=, clip_norm="
    )
    try:
        norm, before_it, behind_it = clipped(1e6)
        max_norm = norm * float(behind_it[0].norm() / before_it[0].norm())
        for scale in (1e6, 1.0, 1e-6):
            norm, before_it, behind_it = clipped(scale)
            factor = min(1.0, max_norm / norm)
            if not all(torch.allclose(made, was * factor, rtol=1e-5) for made, was in zip(behind_it, before_it, strict=True)):
                raise refusal
    except KeyError:
        raise refusal from None
    return Clipping(before=before, max_norm=float(f"{max_norm:.6g}"))


def _chosen(dependence: Dependence, value: int, tainted: set[int]) -> int:
    """What a value is where a choice between it and a multiple of it leaves it as it is."""
    operation = dependence.made_by.get(value)
    if operation is not None and operation.name == "select" and operation.operands[1] in tainted:
        return operation.operands[1]
    return value


def compared(
    listing: Listing, translated: Listing, values: Mapping[int, Tensor], before: Mapping[int, int], names: Mapping[int, str], name: str
) -> Mapping[int, float]:
    """Parameter -> the step's value of its gradient, as a multiple of the gradient of the loss.

    Args:
        translated: the loss in the operations that torch has, as it will be traced.
        values: of the inputs, of a batch as large as the listings are made for.   before: parameter -> the value of its gradient.

    Raises:
        OtherGradient: it is no multiple.
    """
    if is_long(listing):
        _LOGGER.warning("%s: its gradients are taken to be those of its loss; to compare them would take minutes", name)
        return dict.fromkeys(names, 1.0)
    given = {number: _wide(value, number) for number, value in values.items()}
    made = perform(listing.needed_for(before.values()), given, wide=True)
    for number in names:
        given[number].requires_grad_(True)
    (loss,) = perform(translated, given, wide=True)
    wanted = torch.autograd.grad(loss, [given[number] for number in before], allow_unused=True)
    scales: dict[int, float] = {}
    for number, mine, its in zip(before, made, wanted, strict=True):
        its = torch.zeros_like(mine) if its is None else its
        square = float((its * its).sum())
        scale = float((mine * its).sum()) / square if square else 1.0
        if not torch.allclose(mine, scale * its, rtol=1e-4, atol=1e-6 * float(mine.abs().max()) + 1e-12):
            raise OtherGradient(name, names[number])
        scales[number] = scale
    return scales


def is_long(listing: Listing) -> bool:
    """Whether a step takes more than half a minute of one core."""
    return _work(listing) > _MOST_WORK


def _work(listing: Listing) -> float:
    """Multiplications and elements of a listing."""
    total = 0.0
    for operation in listing.operations:
        total += 16 * listing.types[operation.results[0]].numel
        if operation.name in ("dot_general", "convolution"):
            a, b = (listing.types[operand].numel for operand in operation.operands[:2])
            total += 2 * (a * b * listing.types[operation.results[0]].numel) ** 0.5
    return total


def _wide(value: Tensor, seed: int) -> Tensor:
    """In float64; values of its own where it has none."""
    if not value.is_meta:
        return value.to(torch.float64) if value.dtype is torch.float32 else value.clone()
    if not value.dtype.is_floating_point:
        return torch.zeros(value.shape, dtype=value.dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64) * 0.1 + 0.05
