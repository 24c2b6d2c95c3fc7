"""The interpreter: every operation of a listing in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from planner.frontend.stablehlo.listing import Listing, Operation
from planner.frontend.stablehlo.performing.composites import COMPOSITES
from planner.frontend.stablehlo.performing.elementwise import ELEMENTWISE
from planner.frontend.stablehlo.performing.lookups import LOOKUPS
from planner.frontend.stablehlo.performing.products import PRODUCTS
from planner.frontend.stablehlo.performing.shapes import SHAPES
from planner.frontend.stablehlo.performing.values import Value, torch_dtype
from planner.ir.errors import Unsupported
from planner.ir.tensor import DType, TensorType

__all__ = ["check_known", "perform"]

_OF_TYPES = {**SHAPES, **PRODUCTS, **LOOKUPS, **COMPOSITES}


def check_known(listing: Listing, name: str) -> None:
    """Raises Unsupported: an operation that has no translation, with its line and the way out."""
    unknown = [o for o in listing.operations if o.name not in ELEMENTWISE and o.name not in _OF_TYPES]
    if unknown:
        first = unknown[0]
        kinds = sorted({operation.name for operation in unknown})
        raise Unsupported(
            f"{name} has {first.name}{first.where}, which has no translation (so have not: {', '.join(kinds[:8])}); "
            f"write it with the others: {', '.join(sorted((*ELEMENTWISE, *SHAPES, *PRODUCTS, *LOOKUPS)))}"
        )


def perform(
    listing: Listing,
    inputs: Mapping[int, Tensor],
    *,
    wide: bool = False,
    around: Callable[[Operation], Callable[[Callable[[], Value]], Value]] | None = None,
) -> list[Tensor]:
    """The results of a listing.

    Args:
        inputs: value -> tensor, of inputs or of values inside, which are then not computed.
        wide: float32 is computed as float64.
        around: operation -> who calls the function that performs it (a module whose forward it is).
    """
    known: dict[int, Value] = {number: Value.of(tensor) for number, tensor in inputs.items()}
    for operation in listing.operations:
        if all(number in known for number in operation.results):
            continue
        operands = [known[number] for number in operation.operands]
        type_ = _widened(listing.types[operation.results[0]]) if wide else listing.types[operation.results[0]]

        def performed(operation: Operation = operation, operands: Sequence[Value] = operands, type_: TensorType = type_) -> Value:
            if operation.name in ELEMENTWISE:
                return ELEMENTWISE[operation.name](operation, operands, torch_dtype(type_))
            return _OF_TYPES[operation.name](operation, operands, type_)

        known[operation.results[0]] = performed() if around is None else around(operation)(performed)
    return [known[number].tensor() for number in listing.results]


def _widened(type_: TensorType) -> TensorType:
    return TensorType(type_.shape, DType.FLOAT64) if type_.dtype is DType.FLOAT32 else type_
